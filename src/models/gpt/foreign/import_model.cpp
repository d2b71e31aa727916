// Import of language models of other programs as runs, with the deck of such a run.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "choir/run/freezing.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_program.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/foreign/conversion.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/models/gpt/foreign/peft.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/models/gpt/foreign/tokenizer_settings.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/directory.hpp"

namespace choir {

/// A deck for parse_deck(): the model, a batch of one sequence per rank, and a learning rate for
/// fine-tuning. The user adds the data: data.train names a file that does not exist.
std::string foreign_deck(const GptConfig& config, const std::string& run_directory);

namespace {

constexpr std::array<const char*, 2> kNorms{"layernorm", "rmsnorm"};
constexpr std::array<const char*, 2> kPositions{"learned", "rope"};

constexpr std::array<const char*, 3> kBiases{"auto", "yes", "no"};

void add_rope(nlohmann::ordered_json& model, const GptConfig& c) {
  const ops::RopeScaling standard, &s = c.rope_scaling;
  model["rope_theta"] = c.rope_theta;
  if (c.rope_width > 0) model["rope_width"] = c.rope_width;
  if (c.rope_skip_interval > 0) model["rope_skip_interval"] = c.rope_skip_interval;
  if (c.window > 0 && c.rope_local_theta > 0) model["rope_local_theta"] = c.rope_local_theta;
  if (s.kind == ops::RopeScaling::Kind::none) return;
  model["rope_scaling"] = name_of(s.kind);
  if (c.window > 0 && c.rope_scaling_layers != ScaledLayers::all)
    model["rope_scaling_layers"] = name_of(c.rope_scaling_layers);
  const auto add = [&](const char* key, double value, double otherwise) {
    if (value != otherwise) model[key] = value;
  };
  add("rope_factor", s.factor, standard.factor);
  add("rope_original", s.original, standard.original);
  add("rope_low_factor", s.low, standard.low);
  add("rope_high_factor", s.high, standard.high);
  add("rope_beta_fast", s.beta_fast, standard.beta_fast);
  add("rope_beta_slow", s.beta_slow, standard.beta_slow);
  if (s.truncate != standard.truncate) model["rope_truncate"] = s.truncate;
  add("rope_attention_factor", s.attention_factor, standard.attention_factor);
  for (const auto& [key, list] : {std::pair{"rope_short_factors", &c.rope_short_factors},
                                  std::pair{"rope_long_factors", &c.rope_long_factors}})
    if (!list->empty()) model[key] = rope_factors(*list);
}

void add_attention(nlohmann::ordered_json& model, const GptConfig& c) {
  if (c.own_head_width > 0) model["head_width"] = c.own_head_width;
  for (const auto& [key, value] :
       {std::pair{"qkv_bias", c.qkv_bias}, std::pair{"norm_bias", c.norm_bias}})
    if (value != Biases::as_bias) model[key] = kBiases[static_cast<std::size_t>(value)];
  if (c.qk_norm) model["qk_norm"] = true;
  if (c.norms_all_heads()) model["qk_norm_span"] = name_of(c.qk_norm_span);
  if (c.parallel_branches) model["parallel_branches"] = true;
  const GptConfig standard;
  if (c.norm_offset) model["norm_offset"] = true;
  if (c.norm_place != standard.norm_place) model["norm_place"] = name_of(c.norm_place);
  for (const auto& [key, value, otherwise] :
       {std::tuple{"attention_scale", c.attention_scale, standard.attention_scale},
        {"attention_softcap", c.attention_softcap, standard.attention_softcap},
        {"embedding_scale", c.embedding_scale, standard.embedding_scale},
        {"residual_scale", c.residual_scale, standard.residual_scale},
        {"logit_scale", c.logit_scale, standard.logit_scale},
        {"logit_softcap", c.logit_softcap, standard.logit_softcap}})
    if (value != otherwise) model[key] = value;
  if (c.window == 0) return;
  model["attention_window"] = c.window;
  if (c.window_first_layer > 0) model["window_first_layer"] = c.window_first_layer;
  if (c.window_skip_interval > 0) model["window_skip_interval"] = c.window_skip_interval;
}

}  // namespace

std::string foreign_deck(const GptConfig& c, const std::string& run_directory) {
  nlohmann::ordered_json deck;
  auto& run = deck["run"];
  run["dir"] = run_directory;
  run["name"] = std::filesystem::path(run_directory).lexically_normal().filename().string();
  auto& model = deck["model"];
  model["type"] = "gpt";
  model["n_layer"] = c.n_layer;
  model["n_head"] = c.n_head;
  model["n_kv_head"] = c.n_kv_head;
  model["n_embd"] = c.n_embd;
  model["ffn_width"] = c.ffn_width;
  model["block_size"] = c.block_size;
  model["vocab_size"] = c.vocab_size;
  model["bias"] = c.bias;
  model["tied"] = c.tied;
  model["norm"] = kNorms[static_cast<std::size_t>(c.norm)];
  model["norm_eps"] = c.norm_eps;
  model["activation"] = name_of(c.activation);
  model["position"] = kPositions[static_cast<std::size_t>(c.position)];
  if (c.position == Position::rope) add_rope(model, c);
  add_attention(model, c);
  if (c.lora.rank > 0)
    model["lora"] = {{"rank", c.lora.rank},
                     {"alpha", c.lora.alpha},
                     {"dropout", c.lora.dropout},
                     {"rank_stabilised", c.lora.rank_stabilised},
                     {"targets", c.lora.targets}};
  deck["data"]["train"] = {"YOUR-TOKENS"};
  deck["train"]["micro_batch_size"] = 1;
  deck["train"]["grad_accum"] = 1;
  deck["optimizer"]["learning_rate"] = 2e-5;
  deck["eval"]["sample_tokens"] = 0;
  return dumped(deck, 2);
}

namespace {

namespace fs = std::filesystem;

// Files that transformers and its tokenizers store beside weights; config.json has the ids of
// special tokens.
constexpr std::array<const char*, 10> kKept{"tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "tokenizer.model",
                                            "chat_template.jinja",
                                            "generation_config.json",
                                            "config.json"};

/// Maps each part to its tensor in the file, and lists those that do not match.
struct Fit {
  std::unordered_map<std::string, std::string> names;  // name in the table -> name in the file
  std::vector<std::string> missing, unused, different;
  std::int64_t taken = 0, fresh = 0;  // parameters that are in the file, and that are not

  Fit(const TensorReader& weights, const std::vector<TensorPart>& parts, Dialect dialect) {
    for (const TensorEntry& entry : weights.tensors())
      names.emplace(name_in_table(entry.name, dialect), entry.name);
    std::unordered_set<std::string> used;
    for (const TensorPart& part : parts) {
      const auto found = names.find(part.name);
      if (found == names.end()) {
        if (part.repeated) continue;
        missing.push_back(part.name);
        fresh += part.rows * part.columns;
        continue;
      }
      if (!part.repeated) taken += part.rows * part.columns;
      if (!used.insert(found->second).second) continue;  // the same tensor for every layer
      const TensorEntry& entry = weights.at(found->second);
      if (entry.shape != part.shape)
        different.push_back(fmt::format("{} is {}, the model has {}", entry.name,
                                        to_string(entry.shape), to_string(part.shape)));
      else if (!can_convert(entry.encoding, Encoding::f32))
        different.push_back(
            fmt::format("{} is {}, which is not read", entry.name, name_of(entry.encoding)));
    }
    // A single number beside the model is the loss or a count of the trainer's.
    const auto is_count = [](const TensorEntry& entry) {
      return entry.shape.rank() == 0 && entry.name.find('.') == std::string::npos;
    };
    for (const TensorEntry& entry : weights.tensors())
      if (!used.contains(entry.name) && !is_count(entry) &&
          !is_no_weight(name_in_table(entry.name, dialect), dialect))
        unused.push_back(entry.name);
  }

  const std::string* file_name(const TensorPart& part) const {
    const auto found = names.find(part.name);
    return found == names.end() ? nullptr : &found->second;
  }

  void require(const std::string& path, const ImportRequest& request) const {
    require_match(taken, path, missing, unused);
    std::string text, hint;
    const auto add = [&](const char* what, const std::vector<std::string>& list, bool allowed,
                         const char* flag) {
      if (list.empty() || allowed) return;
      text += fmt::format("\n  {}: {}", what, join(list, ", "));
      hint += hint.empty() ? flag : fmt::format("; {}", flag);
    };
    add("of another shape or type", different, false,
        "the description is of another model, or the file is damaged");
    const bool head_alone = missing.size() == 1 && (missing.front() == "lm_head.weight" ||
                                                    missing.front() == "embed_out.weight");
    add("missing", missing, request.allow_missing,
        head_alone ? "a model whose head is its embedding has \"tie_word_embeddings\": true in "
                     "config.json; --allow-missing initialises a new head"
                   : "--allow-missing initialises them");
    add("unused", unused, request.allow_unused, "--allow-unused ignores them");
    if (!text.empty()) throw StorageError(fmt::format("'{}' does not fit:{}", path, text), hint);
  }
};

class Import {
 public:
  Import(Communicator& world, const ImportRequest& request) : world_(world), request_(request) {}

  ImportReport run() {
    together(world_, [&] { prepare(); });
    together(world_, [&] { read(); });
    check_.require(*file_.weights, world_);
    if (adapter_.weights) adapter_check_.require(*adapter_.weights, world_);
    together(world_, [&] {
      if (world_.rank() == 0) make_run_folder(request_.out);
    });
    values_.vocab_size = config_.vocab_size;
    result_ = save_imported(world_, request_.out, deck_, parameters_, values_);
    together(world_, [&] {
      if (world_.rank() == 0) write_rest();
    });
    return report();
  }

 private:
  void prepare() {
    file_ = open_foreign(request_.path, request_.allow_unused);
    if (!request_.adapter.empty()) {
      adapter_ = open_peft(request_.adapter, request_.allow_unused);
      file_.model.config.lora = adapter_.lora;
    }
    deck_ = parse_deck(*request_.families, foreign_deck(file_.model.config, request_.out),
                       request_.out + "/deck.json", request_.overrides);
    config_ = model_of(deck_).as<GptConfig>();
    parameters_ = described_parameters(config_);
    freeze_parameters(parameters_, {deck_.train.freeze, deck_.train.unfreeze}, model_of(deck_));
    parts_ = tensor_parts(config_, parameters_, file_.model.dialect);
    fit_ = std::make_unique<Fit>(*file_.weights, parts_, file_.model.dialect);
    fit_->require(file_.weights->path(), request_);
    if (adapter_.weights) {
      factors_ = factor_parts(config_, parameters_, file_.model.dialect, adapter_.stacked);
      lacking_ = require_fit(adapter_, factors_, request_.allow_missing, request_.allow_unused);
    }
    if (world_.rank() != 0) return;
    if (adapter_.weights) require_empty_sections(adapter_, factors_);
    read_tokenizer();
    require_free_folder(request_.out);
  }

  /// Stores the vocabulary with the model's own chat template. The control pieces of a
  /// SentencePiece model, unlike those of other tokenizers, do not identify a built-in template, so
  /// that its name is stored if the program itself cannot be used.
  void remember(const Vocabulary& vocabulary) {
    vocabulary_ = values_.vocabulary = vocabulary.to_json();
    try {
      auto files = settings_.files();
      files["chat_template.jinja"] = settings_.chat_template();
      ChatForm form{.chat_template = std::string(name_of(ChatTemplate::own)),
                    .system = "",
                    .tokenizer = vocabulary_,
                    .program = ChatProgram::of_files(files)};
      if (form.program != nullptr) {
        end_of_turn(open_chat_tokenizer(form, file_.folder));
        values_.vocabulary = form.to_json();
        return;
      }
    } catch (const DataError& error) {
      kept_.push_back(
          fmt::format("(--chat uses a built-in template, which may differ: {})", error.what()));
    }
    if (vocabulary.kind() != VocabularyKind::sentencepiece) return;
    if (const auto chat = template_written_by(settings_.chat_template()))
      values_.vocabulary =
          ChatForm{
              .chat_template = std::string(name_of(*chat)), .system = "", .tokenizer = vocabulary_}
              .to_json();
  }

  /// Reads the tokenizer. The file of an unsupported tokenizer is kept nevertheless.
  void read_tokenizer() {
    const auto* gguf = dynamic_cast<const GgufReader*>(file_.weights.get());
    settings_ = gguf != nullptr ? TokenizerSettings::of_gguf(gguf->metadata())
                                : TokenizerSettings::of_folder(file_.folder);
    std::string fault;
    const auto use = [&](const Vocabulary& vocabulary) {
      if (vocabulary.size() <= config_.vocab_size) return remember(vocabulary);
      remember(vocabulary.within(config_.vocab_size));
      kept_.push_back(
          fmt::format("(the tokenizer has {} entries, the model {}: texts are encoded "
                      "without the entries from {} on)",
                      vocabulary.size(), config_.vocab_size, config_.vocab_size));
    };
    try {
      if (gguf != nullptr && has_tokenizer(gguf->metadata()))
        use(Vocabulary::from_json(vocabulary_of_gguf(gguf->metadata(), file_.weights->path()),
                                  file_.weights->path()));
    } catch (const DataError& error) {
      fault = error.what();
    }
    // The second file beside the weights is for models whose first file the reader refuses.
    for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"}) {
      const fs::path path = fs::path(file_.folder) / name;
      std::error_code ignored;
      if (gguf != nullptr || !values_.vocabulary.empty() || !fs::is_regular_file(path, ignored))
        continue;
      try {
        use(Vocabulary::load(path.string()));
      } catch (const DataError& error) {
        if (fault.empty()) fault = error.what();
      }
    }
    if (values_.vocabulary.empty())
      kept_.push_back(fmt::format(
          "(text cannot be generated, only token ids: {})",
          fault.empty() ? "there is no tokenizer beside the weights; put tokenizer.json, "
                          "tokenizer.model, or vocab.json and merges.txt there and import again"
                        : fault));
  }

  /// Reads this rank's rows of every parameter.
  void read() {
    const Precision precision = precision_of(deck_);
    for (const Parameter* p : parameters_.all()) {
      const DType dtype = precision.kept(p->trainable);
      const RowShare share = share_of_rows(p->shape[0], world_.rank(), world_.size());
      const std::int64_t columns = columns_of(p->shape);
      values_.rows.emplace_back(static_cast<std::size_t>(share.rows * columns) * size_of(dtype));
      const RowSlab slab{share.first, share.rows, values_.rows.back().data(), dtype};
      if (is_adapter(p->name)) {
        read_factor(*p, slab, columns);
        continue;
      }
      for (const TensorPart& part : parts_) {
        if (part.own != p->name || part.repeated || fit_->file_name(part) != nullptr) continue;
        initialise(*p, static_cast<std::uint64_t>(deck_.run.seed),
                   {slab.data, dtype, {share.rows, columns}}, share.first * columns);
        break;
      }
      for (const TensorPart& part : parts_)
        if (part.own == p->name) read_into(part, slab, columns);
    }
  }

  /// Reads a factor from the adapter, or initialises it as for fresh adapters.
  void read_factor(const Parameter& p, const RowSlab& slab, std::int64_t columns) {
    for (const FactorPart& part : factors_) {
      if (part.own != p.name) continue;
      const TensorEntry* entry = adapter_.find(part);
      if (entry == nullptr) break;
      read_factor_rows(*adapter_.weights, entry->name, part, slab, adapter_check_);
      return;
    }
    initialise(p, static_cast<std::uint64_t>(deck_.run.seed),
               {slab.data, slab.dtype, {slab.rows, columns}}, slab.first * columns);
  }

  void read_into(const TensorPart& part, const RowSlab& slab, std::int64_t columns) {
    const std::string* name = fit_->file_name(part);
    if (name == nullptr) return;
    if (!part.repeated) {
      elements_ += read_part(*file_.weights, *name, part, slab, check_);
      return;
    }
    // Read in parts, so that no second copy of the embedding is in memory.
    constexpr std::int64_t kElements = 1 << 20;
    const std::int64_t rows = std::max<std::int64_t>(1, kElements / columns);
    const std::size_t width = size_of(slab.dtype);
    std::vector<std::byte> other;
    for (std::int64_t at = 0; at < slab.rows; at += rows) {
      const std::int64_t now = std::min(rows, slab.rows - at);
      const std::size_t bytes = static_cast<std::size_t>(now * columns) * width;
      other.resize(bytes);
      read_part(*file_.weights, *name, part, {slab.first + at, now, other.data(), slab.dtype},
                check_);
      if (std::memcmp(other.data(), slab.data + static_cast<std::size_t>(at * columns) * width,
                      bytes) != 0)
        throw StorageError(
            fmt::format("'{}' differs from the token embedding in '{}', but the model is "
                        "described as tied",
                        *name, file_.weights->path()),
            "correct the description: tie_word_embeddings is false");
    }
  }

  void write_rest() {
    write_text_file((fs::path(request_.out) / "deck.json").string(), resolved_json(deck_));
    const fs::path to = fs::path(request_.out) / kTokenizerFolder;
    std::error_code failed;
    const auto* gguf = dynamic_cast<const GgufReader*>(file_.weights.get());
    if (gguf != nullptr && has_tokenizer(gguf->metadata())) {
      fs::create_directories(to, failed);
      GgufWriter writer((to / "tokenizer.gguf").string(), tokenizer_of(gguf->metadata()), {});
      writer.lay_out();
      writer.sync();
      writer.commit(0);
      kept_.emplace_back("tokenizer.gguf");
    }
    // In the form that other commands read: `choir prepare chat --tokenizer`.
    if (gguf != nullptr && !vocabulary_.empty()) {
      write_text_file((to / "tokenizer.json").string(), vocabulary_);
      kept_.emplace_back("tokenizer.json");
    }
    // In the form that transformers reads.
    if (gguf != nullptr && !settings_.empty()) {
      fs::create_directories(to, failed);
      for (const auto& [name, text] : settings_.files()) {
        write_text_file((to / name).string(), text);
        kept_.push_back(name);
      }
    }
    if (gguf == nullptr && !settings_.other_templates().empty())
      kept_.push_back(fmt::format("(left out: the further chat templates {})",
                                  join(settings_.other_templates(), ", ")));
    for (const char* name : kKept) {
      const fs::path from = fs::path(file_.folder) / name;
      if (gguf != nullptr || !fs::is_regular_file(from, failed)) continue;
      constexpr std::size_t kMostMiB = 256;
      if (const std::string excess = file_excess(from.string(), kMostMiB); !excess.empty())
        throw StorageError(fmt::format("'{}' {}", from.string(), excess),
                           "is it the file that its name says?");
      fs::create_directories(to, failed);
      fs::copy_file(from, to / name, failed);
      if (failed)
        throw StorageError(fmt::format("cannot copy '{}' to '{}': {}", from.string(), to.string(),
                                       failed.message()),
                           "is the disk full?");
      kept_.emplace_back(name);
    }
  }

  ImportReport report() {
    std::vector<std::string> missing = fit_->missing;
    std::int64_t fresh = fit_->fresh;
    for (const FactorPart* factor : lacking_) {
      missing.push_back(factor->name);
      fresh += factor->shape.count();
    }
    std::string kept = join(kept_, "\n");
    broadcast_text(world_, kept);
    world_.all_reduce(&elements_, 1, DType::i64, ReduceOp::max);
    return {.model = config_to_text(),
            .checkpoint = result_.path,
            .parameters = parameters_.count(),
            .largest_share = elements_,
            .bytes = result_.bytes,
            .fresh = fresh,
            .missing = missing,
            .unused = fit_->unused,
            .tokenizer = split(kept, '\n')};
  }

  std::string config_to_text() const { return model_of(deck_).family().describe(model_of(deck_)); }

  Communicator& world_;
  const ImportRequest& request_;
  ForeignFile file_;
  Deck deck_;
  GptConfig config_;
  ParameterSet parameters_;
  std::vector<TensorPart> parts_;
  std::unique_ptr<Fit> fit_;
  PeftAdapter adapter_;
  std::vector<FactorPart> factors_;
  std::vector<const FactorPart*> lacking_;  // elements of factors_ that the adapter lacks
  FiniteCheck check_, adapter_check_;
  ImportedValues values_;
  std::string vocabulary_;  // vocabulary of values_, without a template around it
  TokenizerSettings settings_;
  SaveResult result_;
  std::int64_t elements_ = 0;
  std::vector<std::string> kept_;
};

}  // namespace

ImportReport import_model(Communicator& world, const ImportRequest& request) {
  return Import(world, request).run();
}

}  // namespace choir
