#include "src/models/gpt/foreign/peft.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <unordered_set>
#include <utility>

#include "src/core/file.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/key_reader.hpp"
#include "src/run/imported_run.hpp"
#include "src/store/directory.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

/// Names of modules in transformers, and their names here.
constexpr std::pair<std::string_view, std::string_view> kModules[] = {
    {"q_proj", "q"},       {"k_proj", "k"},   {"v_proj", "v"},      {"o_proj", "o"},
    {"gate_proj", "gate"}, {"up_proj", "up"}, {"down_proj", "down"}};
// Only GPT-2 has two modules of one block with the same name.
constexpr std::pair<std::string_view, std::string_view> kOtherModules[] = {
    {"attn.c_attn", "qkv"},
    {"attn.c_proj", "o"},
    {"mlp.c_fc", "up"},
    {"mlp.c_proj", "down"},
    {"self_attn.qkv_proj", "qkv"},
    {"mlp.gate_up_proj", "gate and up"},
    {"attention.query_key_value", "qkv"},
    {"attention.dense", "o"},
    {"mlp.dense_h_to_4h", "up"},
    {"mlp.dense_4h_to_h", "down"}};

/// The targets of a module, by the name of one of its tensors; empty if it is not one of a block.
std::vector<std::string> targets_of(const std::string& module) {
  for (const auto& [there, own] : kModules)
    if (module.ends_with("." + std::string(there))) return {std::string(own)};
  for (const auto& [there, own] : kOtherModules) {
    if (!module.ends_with("." + std::string(there))) continue;
    if (own == "qkv") return {"q", "k", "v"};
    if (own == "gate and up") return {"gate", "up"};
    return {std::string(own)};
  }
  return {};
}

std::string without_default(std::string name) {
  const std::size_t at = name.rfind(".default.weight");
  return at == std::string::npos ? name : name.substr(0, at) + ".weight";
}

/// "blocks.0.attention.qkv.q.adapter_a" -> the weight, and the section of it.
struct FactorName {
  std::string weight, section;

  explicit FactorName(const std::string& own) {
    std::string stem = own.substr(0, own.rfind('.'));
    const std::size_t dot = stem.rfind('.');
    const std::string last = stem.substr(dot + 1);
    if (std::find(std::begin(kLoraTargets), std::end(kLoraTargets), last) !=
        std::end(kLoraTargets)) {
      section = last;
      stem = stem.substr(0, dot);
    }
    weight = stem + ".weight";
  }

  std::int64_t first_row(const GptConfig& c) const {
    if (section == "k") return c.n_head * c.head_width();
    if (section == "v") return (c.n_head + c.n_kv_head) * c.head_width();
    return section == "up" ? c.ffn_width : 0;
  }
};

void read_keys(KeyReader& keys, Lora& lora) {
  keys.only("peft_type", "LORA", "only LORA is read");
  lora.rank = keys.needed("r");
  lora.alpha = keys.real("lora_alpha", 8);
  if (const nlohmann::json* dropout = keys.value("lora_dropout"))
    lora.dropout = dropout->is_number() ? dropout->get<double>() : -1;
  lora.rank_stabilised = keys.flag("use_rslora", false);
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    keys.problem("lora_dropout", "expected 0 <= value < 1");
  keys.only("bias", "none", "biases are not trained with adapters");
  for (const char* key : {"use_dora", "lora_bias", "use_qalora", "use_bdlora"})
    keys.only(key, false, "not supported");
  const auto none = nlohmann::json();
  for (const char* key : {"modules_to_save", "layers_to_transform", "layer_replication",
                          "trainable_token_indices", "target_parameters", "alora_invocation_tokens",
                          "arrow_config", "eva_config", "corda_config", "lora_ga_config",
                          "kasa_config", "velora_config", "monteclora_config", "megatron_config"})
    keys.only(key, none, "not supported");
  for (const char* key : {"rank_pattern", "alpha_pattern", "loftq_config"})
    keys.only(key, nlohmann::json::object(), "not supported: all layers are adapted alike");
  // The weights show which modules have adapters.
  keys.harmless({"target_modules", "exclude_modules", "layers_pattern", "fan_in_fan_out",
                 "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights",
                 "megatron_core", "peft_version", "revision", "task_type", "qalora_group_size",
                 "ensure_weight_tying", "runtime_config"});
}

}  // namespace

std::vector<FactorPart> factor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect) {
  const std::vector<TensorPart> weights = tensor_parts(config, parameters, dialect);
  std::vector<FactorPart> parts;
  for (const Parameter* p : parameters.all()) {
    if (!is_adapter(p->name)) continue;
    const FactorName name(p->name);
    FactorPart part{.own = p->name,
                    .shape = p->shape,
                    .weight = name.weight,
                    .row = name.first_row(config),
                    .is_b = p->name.ends_with(Linear::kFactorB)};
    const auto there = std::find_if(weights.begin(), weights.end(), [&](const TensorPart& weight) {
      return weight.own == name.weight && part.row >= weight.first_row &&
             part.row < weight.first_row + weight.rows;
    });
    CHOIR_CHECK(there != weights.end(), "nothing is beside {}", p->name);
    const std::string module = there->name.substr(0, there->name.rfind('.'));
    part.name = fmt::format("{}{}.lora_{}.weight", kPrefix, module, part.is_b ? "B" : "A");
    part.whole = part.is_b ? Shape{there->rows, p->shape[1]} : p->shape;
    if (part.is_b) part.first = (part.row - there->first_row) * p->shape[1];
    if (part.is_b && there->head_rows > 0) {
      part.head_rows = there->head_rows;
      part.first = part.row / p->shape[0] * part.head_rows * p->shape[1];
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

const TensorEntry* PeftAdapter::find(const FactorPart& part) const {
  const auto found = by_name.find(part.name);
  return found == by_name.end() ? nullptr : found->second;
}

PeftAdapter open_peft(const std::string& folder, bool allow_unknown) {
  const std::string path = (std::filesystem::path(folder) / kAdapterConfig).string();
  constexpr std::size_t kMostMiB = 16;
  const auto [text, fault] = read_capped_file(path, kMostMiB);
  if (!fault.empty())
    throw StorageError(fmt::format("'{}' {}", path, fault),
                       "name the folder that save_pretrained() of PEFT wrote");
  const JsonDocument document = parse_json(text, path);
  KeyReader keys(document.root(), path);
  PeftAdapter adapter;
  read_keys(keys, adapter.lora);
  keys.finish(allow_unknown);
  adapter.weights = open_weights(folder);
  std::set<std::string> found;
  std::vector<std::string> strange;
  for (const TensorEntry& entry : adapter.weights->tensors()) {
    const std::string name = without_default(entry.name);
    adapter.by_name.emplace(name, &entry);
    std::vector<std::string> targets;
    for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
      if (name.ends_with(factor)) targets = targets_of(name.substr(0, name.rfind(".lora_")));
    if (targets.empty()) strange.push_back(entry.name);
    found.insert(targets.begin(), targets.end());
  }
  if (!strange.empty() && !allow_unknown)
    throw StorageError(fmt::format("'{}' has tensors that are not factors of q, k, v, o, gate, up "
                                   "or down: {}",
                                   adapter.weights->path(), join(strange, ", ")),
                       "--allow-unused ignores them");
  if (found.empty())
    throw StorageError(fmt::format("'{}' has no adapters", adapter.weights->path()),
                       "name the folder that save_pretrained() of PEFT wrote");
  adapter.lora.targets.clear();
  for (const std::string_view target : kLoraTargets)
    if (found.contains(std::string(target))) adapter.lora.targets.emplace_back(target);
  return adapter;
}

std::vector<const FactorPart*> require_fit(const PeftAdapter& adapter,
                                           const std::vector<FactorPart>& parts, bool allow_missing,
                                           bool allow_unused) {
  std::vector<const FactorPart*> lacking;
  std::vector<std::string> missing, different, unused;
  std::int64_t taken = 0;
  std::unordered_set<std::string> used;
  for (const FactorPart& part : parts) {
    const TensorEntry* entry = adapter.find(part);
    if (entry == nullptr) {
      lacking.push_back(&part);
      missing.push_back(part.name);
      continue;
    }
    taken += part.shape.count();
    used.insert(entry->name);
    if (entry->shape != part.whole)
      different.push_back(fmt::format("{} is {}, the model has {}", entry->name,
                                      to_string(entry->shape), to_string(part.whole)));
  }
  for (const TensorEntry& entry : adapter.weights->tensors())
    if (!used.contains(entry.name)) unused.push_back(entry.name);
  require_match(taken, adapter.weights->path(), missing, unused);
  std::string text, hint;
  const auto add = [&](const char* what, const std::vector<std::string>& list, bool allowed,
                       const char* flag) {
    if (list.empty() || allowed) return;
    text += fmt::format("\n  {}: {}", what, join(list, ", "));
    hint += hint.empty() ? flag : fmt::format("; {}", flag);
  };
  add("of another shape", different, false, "the adapter is of another model");
  add("missing", missing, allow_missing, "--allow-missing initialises them");
  add("unused", unused, allow_unused, "--allow-unused ignores them");
  if (!text.empty())
    throw StorageError(fmt::format("'{}' does not fit:{}", adapter.weights->path(), text), hint);
  return lacking;
}

std::string peft_config(const Lora& lora, const std::vector<FactorPart>& parts, Dialect dialect) {
  std::set<std::string> modules;
  for (const FactorPart& part : parts) {
    const std::string module = part.name.substr(0, part.name.rfind(".lora_"));
    std::size_t dot = module.rfind('.');
    // Two modules of GPT-2 share the last part of their names.
    if (dialect == Dialect::hf_gpt2) dot = module.rfind('.', dot - 1);
    modules.insert(module.substr(dot + 1));
  }
  nlohmann::ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = nullptr;
  json["r"] = lora.rank;
  json["lora_alpha"] = lora.alpha;
  json["lora_dropout"] = lora.dropout;
  json["use_rslora"] = lora.rank_stabilised;
  json["use_dora"] = false;
  json["target_modules"] = modules;
  json["fan_in_fan_out"] = dialect == Dialect::hf_gpt2;
  json["bias"] = "none";
  json["modules_to_save"] = nullptr;
  json["rank_pattern"] = json["alpha_pattern"] = nlohmann::json::object();
  json["layers_to_transform"] = json["layers_pattern"] = nullptr;
  json["init_lora_weights"] = json["inference_mode"] = true;
  return dumped(json, 2) + "\n";
}

std::vector<double> whole_tensor(const Checkpoint& checkpoint, const std::string& name,
                                 const Shape& shape, Communicator& world) {
  const TensorRecord* record = checkpoint.manifest.find(name);
  CHOIR_CHECK(record != nullptr, "no {}", name);
  const auto count = static_cast<std::size_t>(shape.count());
  std::vector<std::byte> memory(count * size_of(record->dtype));
  load_checkpoint(checkpoint,
                  {{.name = name,
                    .dtype = record->dtype,
                    .shape = shape,
                    .pieces = {{0, shape.count(), memory.data()}}}},
                  world, "nothing else");
  std::vector<double> values(count);
  const TensorView view{memory.data(), record->dtype, shape};
  for (std::size_t i = 0; i < count; ++i)
    values[i] = record->dtype == DType::f64 ? view.as<double>()[i]
                : record->dtype == DType::f32
                    ? static_cast<double>(view.as<float>()[i])
                    : static_cast<double>(static_cast<float>(view.as<bf16>()[i]));
  return values;
}

AdapterSum::AdapterSum(const Checkpoint& checkpoint, const GptConfig& config, Communicator& world)
    : factor_(config.lora.factor()) {
  const ParameterSet parameters = described_parameters(config);
  bool moved = false;
  for (const Parameter* p : parameters.all()) {
    if (!is_adapter(p->name)) continue;
    std::vector<double> values = whole_tensor(checkpoint, "parameters/" + p->name, p->shape, world);
    if (!p->name.ends_with(Linear::kFactorB)) {
      const FactorName name(p->name);
      pairs_.push_back({.weight = name.weight,
                        .row = name.first_row(config),
                        .rank = p->shape[0],
                        .columns = p->shape[1],
                        .a = std::move(values)});
      continue;
    }
    moved = moved || std::any_of(values.begin(), values.end(), [](double x) { return x != 0; });
    pairs_.back().rows = p->shape[0];
    pairs_.back().b = std::move(values);
  }
  if (!moved)
    throw DeckError(checkpoint.path + ": no adapter was trained: every B is 0",
                    "export the run that training started from");
}

void AdapterSum::add_to(const std::string& parameter, const RowSlab& slab) const {
  for (const Pair& pair : pairs_) {
    if (pair.weight != parameter) continue;
    std::vector<double> delta(static_cast<std::size_t>(pair.columns));
    const std::int64_t end = std::min(slab.first + slab.rows, pair.row + pair.rows);
    for (std::int64_t row = std::max(slab.first, pair.row); row < end; ++row) {
      std::fill(delta.begin(), delta.end(), 0.0);
      for (std::int64_t k = 0; k < pair.rank; ++k) {
        const double b =
            factor_ * pair.b[static_cast<std::size_t>((row - pair.row) * pair.rank + k)];
        const double* a = pair.a.data() + k * pair.columns;
        for (std::size_t c = 0; c < delta.size(); ++c) delta[c] += b * a[c];
      }
      const std::int64_t at = (row - slab.first) * pair.columns;
      const TensorView view{slab.data, slab.dtype, {slab.rows, pair.columns}};
      for (std::int64_t c = 0; c < pair.columns; ++c) {
        const double add = delta[static_cast<std::size_t>(c)];
        if (slab.dtype == DType::f64) {
          view.as<double>()[at + c] += add;
        } else if (slab.dtype == DType::f32) {
          float& x = view.as<float>()[at + c];
          x = static_cast<float>(static_cast<double>(x) + add);
        } else {
          bf16& x = view.as<bf16>()[at + c];
          x = bf16(static_cast<float>(static_cast<double>(static_cast<float>(x)) + add));
        }
      }
    }
  }
}

}  // namespace choir
