#include "src/models/gpt/foreign/peft.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
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
    {"attn.c_proj", "o"},     {"mlp.c_fc", "up"},          {"mlp.c_proj", "down"},
    {"attention.dense", "o"}, {"mlp.dense_h_to_4h", "up"}, {"mlp.dense_4h_to_h", "down"}};

/// A module of several of ours, which are sections of its rows.
struct FusedModule {
  std::string_view name;
  std::vector<std::string> sections;
};
const FusedModule kFusedModules[] = {{"attn.c_attn", {"q", "k", "v"}},
                                     {"self_attn.qkv_proj", {"q", "k", "v"}},
                                     {"attention.query_key_value", {"q", "k", "v"}},
                                     {"mlp.gate_up_proj", {"gate", "up"}}};

/// The fused module of this name, which may have names of other modules in front; nullptr if it is
/// none.
const FusedModule* fused_module(std::string_view module) {
  for (const FusedModule& one : kFusedModules)
    if (module == one.name || module.ends_with("." + std::string(one.name))) return &one;
  return nullptr;
}

/// The targets of a module, by the name of one of its tensors; empty if it is not one of a block.
std::vector<std::string> targets_of(const std::string& module) {
  if (const FusedModule* fused = fused_module(module)) return fused->sections;
  for (const auto& [there, own] : kModules)
    if (module.ends_with("." + std::string(there))) return {std::string(own)};
  for (const auto& [there, own] : kOtherModules)
    if (module.ends_with("." + std::string(there))) return {std::string(own)};
  return {};
}

std::string without_default(std::string name) {
  const std::size_t at = name.rfind(".default.weight");
  return at == std::string::npos ? name : name.substr(0, at) + ".weight";
}

/// The first row of a section in our weight of all sections, and its number of rows.
std::int64_t first_row_of(std::string_view section, const GptConfig& c) {
  if (section == "k") return c.n_head * c.head_width();
  if (section == "v") return (c.n_head + c.n_kv_head) * c.head_width();
  return section == "up" ? c.ffn_width : 0;
}
std::int64_t rows_of_section(std::string_view section, const GptConfig& c) {
  if (section == "gate" || section == "up") return c.ffn_width;
  return (section == "q" ? c.n_head : c.n_kv_head) * c.head_width();
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

  std::int64_t first_row(const GptConfig& c) const { return first_row_of(section, c); }
};

/// Reads ranks of modules of their own, of which only those of stacked adapters are supported.
void read_stacks(KeyReader& keys, const Lora& lora, StackedModules& stacked) {
  const nlohmann::json* ranks = keys.value("rank_pattern");
  const nlohmann::json* alphas = keys.value("alpha_pattern");
  const auto entries = [](const nlohmann::json* from) {
    return from == nullptr || !from->is_object() ? std::size_t{0} : from->size();
  };
  const auto refuse = [&](const char* key) {
    keys.problem(key,
                 "not supported: all layers are adapted alike, except that the adapters of q, k "
                 "and v or of gate and up may be stacked to one of 3 or 2 times the rank");
  };
  if (ranks != nullptr && !ranks->is_object()) return refuse("rank_pattern");
  if (alphas != nullptr && !alphas->is_object()) return refuse("alpha_pattern");
  for (std::size_t i = 0; i < entries(ranks); ++i) {
    const auto rank = std::next(ranks->begin(), static_cast<std::ptrdiff_t>(i));
    const FusedModule* fused = fused_module(rank.key());
    for (const FusedModule& one : kFusedModules)
      if (one.name.ends_with("." + rank.key())) fused = &one;
    const auto number = fused == nullptr ? 0 : std::ssize(fused->sections);
    if (number == 0 || !rank->is_number_integer() || *rank != number * lora.rank)
      return refuse("rank_pattern");
    Lora stack = lora;
    stack.rank = number * lora.rank;
    if (alphas != nullptr && alphas->contains(rank.key()) && alphas->at(rank.key()).is_number())
      stack.alpha = alphas->at(rank.key()).get<double>();
    if (!(std::abs(stack.factor() - lora.factor()) <= 1e-12 * lora.factor()))
      return refuse("alpha_pattern");
    stacked.emplace(fused->name);
  }
  if (entries(alphas) > entries(ranks)) refuse("alpha_pattern");
}

/// Refuses the initialisations of PEFT that change the weights of the base when they are applied,
/// so that the adapter does not belong to the base in its file.
void refuse_changed_base(KeyReader& keys) {
  const nlohmann::json* init = keys.value("init_lora_weights");
  if (init == nullptr || !init->is_string()) return;
  for (const char* changing : {"pissa", "olora", "corda", "loftq", "lora_ga"})
    if (init->get<std::string>().starts_with(changing))
      keys.problem("init_lora_weights",
                   "the adapter belongs to weights that this initialisation has changed; merge it "
                   "into its model with PEFT, or save it with PEFT's "
                   "path_initial_model_for_weight_conversion");
}

void read_keys(KeyReader& keys, Lora& lora, StackedModules& stacked) {
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
  keys.only("loftq_config", nlohmann::json::object(), "not supported");
  read_stacks(keys, lora, stacked);
  refuse_changed_base(keys);
  // The weights show which modules have adapters.
  keys.harmless({"target_modules", "exclude_modules", "layers_pattern", "fan_in_fan_out",
                 "auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_core",
                 "peft_version", "revision", "task_type", "qalora_group_size",
                 "ensure_weight_tying", "runtime_config"});
}

/// A negative zero is one, too.
bool is_zero(const std::byte* data, DType dtype, std::int64_t count) {
  const TensorView view{const_cast<std::byte*>(data), dtype, {count}};
  for (std::int64_t i = 0; i < count; ++i)
    if (dtype == DType::f64   ? view.as<double>()[i] != 0
        : dtype == DType::f32 ? view.as<float>()[i] != 0
                              : static_cast<float>(view.as<bf16>()[i]) != 0)
      return false;
  return true;
}

[[noreturn]] void refuse_whole(const TensorReader& from, const std::string& name) {
  throw StorageError(
      fmt::format("'{}' adapts a module as a whole: {} has values beside the blocks of its parts",
                  from.path(), name),
      "it was trained after its blocks were stacked; merge it into its model with PEFT");
}

/// Adds the sections that a stack has adapters of: those whose rows of A are not zero.
void add_stacked(const TensorReader& weights, const TensorEntry& a, std::int64_t rank,
                 const FusedModule& fused, std::set<std::string>& found) {
  const bool fits =
      a.shape.rank() == 2 && a.shape[0] == rank * std::ssize(fused.sections) && a.shape[1] > 0;
  std::vector<double> rows;
  for (std::int64_t i = 0; i < std::ssize(fused.sections); ++i) {
    const auto& section = fused.sections[static_cast<std::size_t>(i)];
    if (fits) {
      const std::int64_t count = rank * a.shape[1];
      rows.resize(static_cast<std::size_t>(count));
      weights.read(a.name, i * count, count, rows.data(), DType::f64);
      if (std::all_of(rows.begin(), rows.end(), [](double x) { return x == 0; })) continue;
    }
    found.insert(section);  // the wrong shape of others is reported for all of them
  }
}

}  // namespace

StackedModules all_fused_modules() {
  StackedModules all;
  for (const FusedModule& one : kFusedModules) all.emplace(one.name);
  return all;
}

std::vector<FactorPart> factor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect, const StackedModules& stacked) {
  const std::vector<TensorPart> weights = tensor_parts(config, parameters, dialect);
  std::vector<FactorPart> parts;
  // A part of the section, or of the whole module if it has none.
  const auto add = [&](const std::string& own, const Shape& shape, const FactorName& name,
                       bool is_b) {
    FactorPart part{.own = own,
                    .shape = shape,
                    .weight = name.weight,
                    .row = name.first_row(config),
                    .is_b = is_b};
    const auto there = std::find_if(weights.begin(), weights.end(), [&](const TensorPart& weight) {
      return weight.own == name.weight && part.row >= weight.first_row &&
             part.row < weight.first_row + weight.rows;
    });
    CHOIR_CHECK(there != weights.end(), "nothing is beside {}", own);
    const std::string module = there->name.substr(0, there->name.rfind('.'));
    part.name = fmt::format("{}{}.lora_{}.weight", kPrefix, module, is_b ? "B" : "A");
    const FusedModule* fused = name.section.empty() ? nullptr : fused_module(module);
    if (fused != nullptr && !stacked.contains(fused->name)) fused = nullptr;
    const std::int64_t sections = fused == nullptr ? 1 : std::ssize(fused->sections);
    const std::int64_t section =
        fused == nullptr ? 0
                         : std::find(fused->sections.begin(), fused->sections.end(), name.section) -
                               fused->sections.begin();
    part.whole =
        is_b ? Shape{there->rows, sections * shape[1]} : Shape{sections * shape[0], shape[1]};
    part.column = is_b ? section * shape[1] : 0;
    part.first = (is_b ? part.row - there->first_row : section * shape[0]) * part.whole[1];
    if (is_b && there->head_rows > 0) {
      part.head_rows = there->head_rows;
      part.first = part.row / shape[0] * part.head_rows * part.whole[1];
    }
    parts.push_back(std::move(part));
    return fused;
  };
  std::set<std::string> adapted;
  for (const Parameter* p : parameters.all())
    if (is_adapter(p->name)) adapted.insert(p->name);
  for (const Parameter* p : parameters.all()) {
    if (!is_adapter(p->name)) continue;
    const bool is_b = p->name.ends_with(Linear::kFactorB);
    FactorName name(p->name);
    const FusedModule* fused = add(p->name, p->shape, name, is_b);
    if (fused == nullptr) continue;
    // The first adapter of a module is followed by the zeros of sections that have none.
    const auto own_name = [&](const std::string& section) {
      std::string own = p->name;
      return own.replace(own.rfind("." + name.section + ".") + 1, name.section.size(), section);
    };
    const auto first =
        std::find_if(fused->sections.begin(), fused->sections.end(),
                     [&](const auto& one) { return adapted.contains(own_name(one)); });
    if (*first != name.section) continue;
    for (const std::string& section : fused->sections) {
      if (adapted.contains(own_name(section))) continue;
      FactorName other = name;
      other.section = section;
      add("", is_b ? Shape{rows_of_section(section, config), p->shape[1]} : p->shape, other, is_b);
    }
  }
  return parts;
}

void read_factor_rows(const TensorReader& from, const std::string& name, const FactorPart& part,
                      const RowSlab& to, FiniteCheck& check) {
  const std::int64_t columns = part.shape[1], wide = part.whole[1];
  const std::size_t width = size_of(to.dtype), row_bytes = static_cast<std::size_t>(wide) * width;
  std::vector<std::byte> whole_rows;
  for (std::int64_t at = 0; at < to.rows;) {
    const std::int64_t row = to.first + at;
    const std::int64_t rows = std::min(part.adjacent(row), to.rows - at);
    std::byte* const own = to.data + static_cast<std::size_t>(at * columns) * width;
    std::byte* read = own;
    if (wide != columns) {
      whole_rows.resize(static_cast<std::size_t>(rows) * row_bytes);
      read = whole_rows.data();
    }
    from.read(name, part.there(row), rows * wide, read, to.dtype);
    check.look(name, read, to.dtype, rows * wide, part.there(row));
    for (std::int64_t i = 0; wide != columns && i < rows; ++i) {
      std::byte* const block = read + static_cast<std::size_t>(i) * row_bytes +
                               static_cast<std::size_t>(part.column) * width;
      const std::size_t bytes = static_cast<std::size_t>(columns) * width;
      std::memcpy(own + static_cast<std::size_t>(i) * bytes, block, bytes);
      std::memset(block, 0, bytes);
    }
    if (wide != columns && !is_zero(read, to.dtype, rows * wide)) refuse_whole(from, name);
    at += rows;
  }
}

void require_empty_sections(const PeftAdapter& adapter, const std::vector<FactorPart>& parts) {
  std::vector<double> values;
  for (const FactorPart& part : parts) {
    const TensorEntry* entry = adapter.find(part);
    if (!part.own.empty() || !part.is_b || entry == nullptr) continue;
    for (std::int64_t row = 0; row < part.shape[0]; row += part.adjacent(row)) {
      const std::int64_t count = part.adjacent(row) * part.whole[1];
      values.resize(static_cast<std::size_t>(count));
      adapter.weights->read(entry->name, part.there(row), count, values.data(), DType::f64);
      if (!is_zero(reinterpret_cast<const std::byte*>(values.data()), DType::f64, count))
        refuse_whole(*adapter.weights, entry->name);
    }
  }
}

void write_factor_rows(TensorWriter& to, const FactorPart& part, const RowSlab& from) {
  const std::int64_t columns = part.shape[1], wide = part.whole[1];
  const std::size_t width = size_of(from.dtype), bytes = static_cast<std::size_t>(columns) * width;
  std::vector<std::byte> whole_rows;
  for (std::int64_t at = 0; at < from.rows;) {
    const std::int64_t row = from.first + at;
    const std::int64_t rows = std::min(part.adjacent(row), from.rows - at);
    whole_rows.assign(static_cast<std::size_t>(rows * wide) * width, std::byte{0});
    for (std::int64_t i = 0; from.data != nullptr && i < rows; ++i)
      std::memcpy(whole_rows.data() + static_cast<std::size_t>(i * wide + part.column) * width,
                  from.data + static_cast<std::size_t>(at + i) * bytes, bytes);
    to.write(part.name, part.there(row), rows * wide, whole_rows.data(), from.dtype);
    at += rows;
  }
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
  read_keys(keys, adapter.lora, adapter.stacked);
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
    const FusedModule* fused = fused_module(name.substr(0, name.rfind(".lora_")));
    if (fused == nullptr || !adapter.stacked.contains(fused->name))
      found.insert(targets.begin(), targets.end());
    else if (name.ends_with(".lora_A.weight"))
      add_stacked(*adapter.weights, entry, adapter.lora.rank, *fused, found);
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
    if (part.own.empty()) continue;  // zeros
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
  auto ranks = nlohmann::ordered_json::object(), alphas = nlohmann::ordered_json::object();
  for (const FactorPart& part : parts) {
    const std::string module = part.name.substr(0, part.name.rfind(".lora_"));
    std::size_t dot = module.rfind('.');
    // Two modules of GPT-2 share the last part of their names.
    if (dialect == Dialect::hf_gpt2) dot = module.rfind('.', dot - 1);
    const std::string last = module.substr(dot + 1);
    modules.insert(last);
    if (part.is_b || part.whole == part.shape) continue;
    // PEFT divides by the rank, or its root, of the stack.
    const auto stacked = static_cast<double>(part.whole[0]) / static_cast<double>(part.shape[0]);
    ranks[last] = part.whole[0];
    alphas[last] = lora.alpha * (lora.rank_stabilised ? std::sqrt(stacked) : stacked);
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
  json["rank_pattern"] = std::move(ranks);
  json["alpha_pattern"] = std::move(alphas);
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
