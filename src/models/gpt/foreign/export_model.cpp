#include "src/models/gpt/foreign/conversion.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <unordered_set>

#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/models/gpt/foreign/exported_tokenizer.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/models/gpt/foreign/peft.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/store/directory.hpp"
#include "src/store/llmc/llmc_model.hpp"
#include "src/store/safetensors/safetensors.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationConfig = "generation_config.json";

struct TypeName {
  std::string_view word;
  Encoding encoding;
  std::string_view hf;  ///< "": safetensors of transformers have no such type
};
constexpr TypeName kTypes[] = {
    {"f64", Encoding::f64, "float64"}, {"f32", Encoding::f32, "float32"},
    {"f16", Encoding::f16, "float16"}, {"bf16", Encoding::bf16, "bfloat16"},
    {"q8_0", Encoding::q8_0, ""},      {"q4_k", Encoding::q4_k, ""}};

class Export {
 public:
  Export(Communicator& world, const Checkpoint& checkpoint, const GptConfig& config,
         const ExportRequest& request)
      : world_(world), checkpoint_(checkpoint), config_(config), request_(request) {}

  ExportReport run() {
    together(world_, [&] { prepare(); });
    if (request_.merge) merged_ = std::make_unique<AdapterSum>(checkpoint_, config_, world_);
    together(world_, [&] {
      if (world_.rank() == 0) lay_out();
    });
    for (const Parameter* p : parameters_.all())
      if (!factors_.empty() == is_adapter(p->name)) write(*p);
    together(world_, [&] {
      for (const auto& [name, numbers] : angles_)
        if (world_.rank() == 0)
          writer_->write(name, 0, std::ssize(numbers), numbers.data(), DType::f32);
      for (const FactorPart& factor : factors_)
        if (world_.rank() == 0 && factor.own.empty())
          write_factor_rows(*writer_, factor, {.rows = factor.shape[0]});
      writer_->sync();
    });
    std::int64_t written = writer_->written();
    world_.all_reduce(&written, 1, DType::i64, ReduceOp::sum);
    together(world_, [&] {
      if (world_.rank() != 0) return;
      writer_->commit(written);
      write_rest();
    });
    std::string files = join(report_.files, "\n");
    broadcast_text(world_, files);
    report_.files = split(files, '\n');
    std::string notes = join(report_.notes, "\n");
    broadcast_text(world_, notes);
    report_.notes = notes.empty() ? std::vector<std::string>() : split(notes, '\n');
    report_.bytes = writer_->bytes();
    return report_;
  }

 private:
  bool is_folder() const { return request_.format != "gguf" && request_.format != "llmc"; }

  void prepare() {
    type_ = std::find_if(std::begin(kTypes), std::end(kTypes),
                         [&](const TypeName& one) { return one.word == request_.type; });
    CHOIR_CHECK(type_ != std::end(kTypes), "type {}", request_.type);
    there_ = config_;
    choose_dialect();
    check_adapters();
    if (request_.format == "gguf") angles_ = gguf_angle_tensors(there_);
    parameters_ = described_parameters(there_);
    parts_ = tensor_parts(there_, parameters_, dialect_);
    if (request_.format == "gguf") fold_score_scale(there_, parts_);
    if (request_.format == "peft") take_factors();
    if (!repeats_head(dialect_))
      std::erase_if(parts_, [](const TensorPart& part) { return part.repeated; });
    if (world_.rank() == 0) require_free_output(request_.out, is_folder());
    open_tokenizer();
    make_writer();
  }

  void open_tokenizer() {
    report_.type = request_.type;
    if (request_.format == "peft") return;
    tokenizer_ = exported_tokenizer({.folder = request_.tokenizer_folder,
                                     .vocabulary = request_.vocabulary,
                                     .trained = checkpoint_.manifest.step > 0,
                                     .model_ids = there_.vocab_size});
    if (dialect_ != Dialect::llmc) {
      report_.notes = tokenizer_.notes;
    } else if (tokenizer_.vocabulary || !tokenizer_.settings.empty()) {
      report_.notes.emplace_back(
          "left out: the tokenizer, ids of special tokens, settings of generation and chat "
          "template, which a file of llm.c does not hold; --format hf keeps them");
    }
  }

  void check_adapters() {
    const bool adapted = config_.lora.rank > 0, alone = request_.format == "peft";
    if (adapted && !alone && !request_.merge)
      throw DeckError(
          fmt::format("--format {} has no adapters, but the model does: model.lora.rank "
                      "= {}",
                      request_.format, config_.lora.rank),
          "--merge adds them to the weights; --format peft writes only the adapters");
    if (!adapted && (alone || request_.merge))
      throw DeckError(fmt::format("{} is for models with adapters, and this one has none",
                                  alone ? "--format peft" : "--merge"),
                      "leave it out, or name a run with model.lora.rank");
    if (alone && request_.merge)
      throw DeckError("--merge leaves no adapter that --format peft could write",
                      "leave out --merge, or choose --format hf");
    if (request_.merge) there_.lora = {};
  }

  /// Selects the factors of adapters instead of the weights.
  void take_factors() {
    factors_ = factor_parts(there_, parameters_, dialect_, all_fused_modules());
    parts_.clear();
    std::set<std::string> stacked;
    for (const FactorPart& factor : factors_) {
      const std::string module = factor.name.substr(0, factor.name.rfind(".lora_"));
      if (!factor.is_b && factor.whole != factor.shape)
        stacked.insert(module.substr(module.rfind('.') + 1));
    }
    if (!stacked.empty())
      report_.notes.push_back(
          fmt::format("stacked: {}, whose rank and alpha are in rank_pattern and alpha_pattern; a "
                      "program that ignores these keys computes something else",
                      join({stacked.begin(), stacked.end()}, ", ")));
  }

  /// Refuses features that the format does not have.
  void choose_dialect() {
    const std::string& format = request_.format;
    const Encoding type = type_->encoding;
    const bool fits = format == "gguf"   ? type != Encoding::f64
                      : format == "llmc" ? type == Encoding::f32 || type == Encoding::bf16
                                         : !type_->hf.empty();
    if (!fits)
      throw DeckError(
          fmt::format("--type {} is not supported by --format {}", request_.type, format),
          "all formats support f32 and bf16; only gguf supports q8_0 and q4_k");
    if (format == "hf" || format == "peft") {
      dialect_ = hf_dialect_of(config_);
    } else if (format == "gguf") {
      dialect_ = gguf_dialect_of(config_);
    } else if (format == "nanogpt") {
      require_nanogpt(config_);
      dialect_ = Dialect::nanogpt;
    } else {
      require_llmc(config_);
      dialect_ = Dialect::llmc;
    }
    // A bias of zeros computes the same as no bias.
    if (there_.bias) there_.qkv_bias = Biases::as_bias;
    if (format != "peft" && (dialect_ == Dialect::hf_gpt2 || dialect_ == Dialect::hf_neox ||
                             dialect_ == Dialect::gguf_gpt2 || dialect_ == Dialect::llmc))
      there_.bias = true, there_.qkv_bias = there_.norm_bias = Biases::as_bias;
  }

  void make_writer() {
    if (dialect_ == Dialect::llmc) {
      writer_ = std::make_unique<LlmcWriter>(
          request_.out, LlmcConfig{.block_size = there_.block_size,
                                   .vocab_size = there_.vocab_size,
                                   .layers = there_.n_layer,
                                   .heads = there_.n_head,
                                   .width = there_.n_embd,
                                   .in_bf16 = type_->encoding == Encoding::bf16});
      return;
    }
    std::vector<TensorEntry> entries;
    for (const TensorPart& part : parts_)
      entries.push_back({part.name,
                         request_.format == "gguf"
                             ? gguf_encoding(part, type_->encoding, there_.tied)
                             : type_->encoding,
                         part.shape});
    std::unordered_set<std::string> seen;
    for (const FactorPart& factor : factors_)
      if (seen.insert(factor.name).second)
        entries.push_back({factor.name, type_->encoding, factor.whole});
    if (request_.format == "gguf") name_stored_type();
    for (const auto& [name, numbers] : angles_)
      entries.push_back({name, Encoding::f32, {std::ssize(numbers)}});
    if (request_.format == "gguf")
      writer_ = std::make_unique<GgufWriter>(request_.out, metadata(), std::move(entries));
    else
      writer_ = std::make_unique<SafetensorsWriter>(
          request_.out, std::move(entries),
          SafetensorsOptions{
              .shard_bytes = request_.shard_bytes,
              .stem = request_.format == "peft" ? "adapter_model" : "model",
          });
  }

  /// Reports matrices that have another type.
  void name_stored_type() {
    const Encoding type = type_->encoding;
    const auto matrices = gguf_matrices(parts_, type, there_.tied);
    stored_ = gguf_stored_type(matrices, type);
    report_.type = fold_name(name_of(stored_));
    for (const auto& [encoding, count] : matrices) {
      if (encoding == type) continue;
      const std::string word = fold_name(name_of(encoding));
      const bool head =
          type == Encoding::q4_k && (encoding == Encoding::q6_k || encoding == Encoding::q8_0);
      report_.notes.push_back(
          head ? fmt::format("the head as {}, with more bits than {}, as llama.cpp does", word,
                             request_.type)
               : fmt::format("{} as {}, not as {}, because the rows are not whole blocks of {}",
                             counted(count, "matrix tensor"), word, request_.type,
                             block_elements(type)));
    }
  }

  GgufMetadata metadata() const {
    GgufMetadata all = gguf_metadata(there_, stored_, request_.name);
    const GgufMetadata tokenizer = gguf_of(tokenizer_, there_.vocab_size);
    for (const auto& [key, value] : tokenizer.pairs()) all.add(key, value);
    return all;
  }

  void lay_out() {
    make_output_folder(request_.out, is_folder());
    writer_->lay_out();
  }

  /// Collective.
  void write(const Parameter& parameter) {
    const std::string name = "parameters/" + parameter.name;
    const TensorRecord* record = checkpoint_.manifest.find(name);
    CHOIR_CHECK(record != nullptr || parameter.name.ends_with(".bias"), "no {}", name);
    if (record == nullptr) ++report_.zero_tensors;
    // Sums with adapters are not rounded to the type of a frozen base.
    const bool narrow = record == nullptr || (merged_ && record->dtype == DType::bf16);
    const DType dtype = narrow ? DType::f32 : record->dtype;
    const SlabSource tensor{name, parameter.shape, dtype};
    for_each_slab(checkpoint_, world_, tensor, [&](const RowSlab& slab) {
      if (merged_) merged_->add_to(parameter.name, slab);
      require_finite_slab(checkpoint_, tensor, slab);
      for (const TensorPart& part : parts_)
        if (part.own == parameter.name) write_part(*writer_, part, slab);
      for (const FactorPart& factor : factors_)
        if (factor.own == parameter.name) write_factor_rows(*writer_, factor, slab);
    });
  }

  /// Writes the files beside the weights.
  void write_rest() {
    if (!is_folder()) {
      report_.files.push_back(request_.out);
      return;
    }
    const fs::path out = request_.out;
    const auto add = [&](const std::string& name, const std::string& text) {
      write_text_file((out / name).string(), text);
    };
    if (request_.format == "peft") {
      add(kAdapterConfig, peft_config(config_.lora, factors_, dialect_));
    } else if (dialect_ == Dialect::nanogpt) {
      add(kModelArgs, nanogpt_model_args(there_));
      tokenizer_.settings.complete_generation_ids();
    } else {
      const std::string tokens = tokenizer_.settings.ids_json();
      add("config.json", hf_config(there_, std::string(type_->hf), tokens));
      if (tokenizer_.settings.file(kGenerationConfig).empty())
        add(kGenerationConfig, hf_generation_config(tokens));
    }
    if (request_.format == "peft") return list_files(out);
    const auto notes = write_tokenizer(tokenizer_, request_.out, {.except = {"config.json"}});
    report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
    list_files(out);
  }

  void list_files(const fs::path& out) {
    for (const auto& entry : fs::directory_iterator(out))
      report_.files.push_back(entry.path().string());
    std::sort(report_.files.begin(), report_.files.end());
  }

  Communicator& world_;
  const Checkpoint& checkpoint_;
  const GptConfig& config_;
  const ExportRequest& request_;
  const TypeName* type_ = nullptr;
  GptConfig there_;  ///< the model in the other program's terms
  Dialect dialect_ = Dialect::hf_llama;
  ParameterSet parameters_;
  std::vector<TensorPart> parts_;
  std::vector<FactorPart> factors_;                                 ///< of --format peft
  std::vector<std::pair<std::string, std::vector<float>>> angles_;  ///< tensors of GGUF
  ExportedTokenizer tokenizer_;
  Encoding stored_ = Encoding::f32;  ///< of matrices in GGUF
  std::unique_ptr<AdapterSum> merged_;
  std::unique_ptr<TensorWriter> writer_;
  ExportReport report_;
};

}  // namespace

ExportReport export_model(Communicator& world, const Checkpoint& checkpoint,
                          const GptConfig& config, const ExportRequest& request) {
  return Export(world, checkpoint, config, request).run();
}

}  // namespace choir
