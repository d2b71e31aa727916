#include "src/models/fastconformer/foreign/nemo.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <unordered_set>

#include "choir/models/family.hpp"
#include "choir/run/freezing.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file_kind.hpp"
#include "src/core/text.hpp"
#include "src/core/yaml_reader.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/fastconformer.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/collectives.hpp"
#include "src/store/directory.hpp"
#include "src/store/finite.hpp"
#include "src/store/torch/nemo_archive.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDescription = "model_config.yaml";

std::string nemo_deck(const NemoModel& model, const std::vector<std::string>& zeros,
                      const std::string& out) {
  const FastConformerConfig& c = model.config;
  nlohmann::ordered_json deck;
  deck["run"]["dir"] = out;
  deck["run"]["name"] = fs::path(out).lexically_normal().filename().string();
  auto& there = deck["model"];
  there["type"] = "fastconformer";
  there["n_layer"] = c.n_layer;
  there["n_head"] = c.n_head;
  there["n_embd"] = c.n_embd;
  there["ffn_width"] = c.ffn_width;
  there["vocab_size"] = c.vocab_size;
  there["conv_kernel"] = c.conv_kernel;
  there["conv_norm"] = c.conv_norm == ConvNorm::batchnorm ? "batchnorm" : "layernorm";
  there["subsampling"] = c.subsampling;
  there["subsampling_channels"] = c.subsampling_channels;
  there["xscaling"] = c.xscaling;
  there["causal"] = c.causal;
  there["context_style"] = c.context_style == ContextStyle::chunked ? "chunked" : "regular";
  there["left_context"] = c.left_context;
  there["right_context"] = c.right_context;
  there["normalise"] = c.normalise;
  there["mels"] = c.mel.mels;
  there["sample_rate"] = c.mel.sample_rate;
  there["window"] = c.mel.window;
  there["hop"] = c.mel.hop;
  there["fft"] = c.mel.fft;
  there["mel_high"] = c.mel.high;
  there["preemphasis"] = c.mel.preemphasis;
  there["dither"] = c.mel.dither;
  there["freq_masks"] = c.augment.frequency_masks;
  if (c.augment.frequency_masks > 0) there["freq_width"] = c.augment.frequency_width;
  there["time_masks"] = c.augment.time_masks;
  if (c.augment.time_masks > 0) there["time_width"] = c.augment.time_width;
  deck["data"]["train"] = {"YOUR-AUDIO"};
  if (!zeros.empty()) deck["train"]["freeze"] = zeros;
  deck["train"]["micro_batches"] = 1;
  deck["optimizer"]["learning_rate"] = 1e-4;
  return dumped(deck, 2);
}

/// Labels that are single characters. NeMo has them in any order, for example a blank first and an
/// apostrophe last; ours are in the order of their code points.
struct NemoCharacters {
  Vocabulary vocabulary;
  std::vector<std::int64_t> rows;  ///< rows of NeMo's head, in the order of our symbols
};

/// Nothing for other labels, and for a character that occurs twice.
std::optional<NemoCharacters> nemo_characters(const NemoModel& model) {
  std::vector<std::pair<char32_t, std::int64_t>> characters;
  for (const std::string& label : model.labels) {
    const CodePoint c = label.empty() ? CodePoint{} : first_code_point(label);
    if (c.length == 0 || static_cast<std::size_t>(c.length) != label.size()) return {};
    characters.emplace_back(c.value, std::ssize(characters));
  }
  if (characters.empty() || std::ssize(characters) != model.config.vocab_size) return {};
  std::ranges::sort(characters);
  std::vector<char32_t> sorted;
  std::vector<std::int64_t> rows;
  for (const auto& [character, row] : characters) {
    if (!sorted.empty() && character == sorted.back()) return {};
    sorted.push_back(character);
    rows.push_back(row);
  }
  return NemoCharacters{Vocabulary::characters(std::move(sorted)), std::move(rows)};
}

class NemoImport {
 public:
  NemoImport(Communicator& world, const ImportRequest& request)
      : world_(world), request_(request) {}

  ImportReport run() {
    together(world_, [&] { prepare(); });
    together(world_, [&] { read(); });
    check_.require(*weights_, world_);
    together(world_, [&] {
      if (world_.rank() == 0) keep_tokenizer();
    });
    broadcast_text(world_, values_.vocabulary);
    values_.vocab_size = model_.config.vocab_size;
    const SaveResult saved = save_imported(world_, request_.out, deck_, *parameters_, values_);
    together(world_, [&] {
      if (world_.rank() == 0)
        write_text_file((fs::path(request_.out) / "deck.json").string(), resolved_json(deck_));
    });
    std::string kept = join(kept_, "\n");
    broadcast_text(world_, kept);
    world_.all_reduce(&elements_, 1, DType::i64, ReduceOp::max);
    const ModelConfig config = model_of(deck_);
    return {.model = config.family().describe(config),
            .checkpoint = saved.path,
            .parameters = parameters_->count(),
            .largest_share = elements_,
            .bytes = saved.bytes,
            .fresh = fresh_,
            .missing = missing_,
            .unused = unused_,
            .tokenizer = split(kept, '\n')};
  }

 private:
  void prepare() {
    if (!request_.adapter.empty())
      throw DeckError("--adapter is supported only for language models", "leave it out");
    archive_ = std::make_unique<NemoArchive>(request_.path);
    const std::string source = request_.path + "/" + kDescription;
    model_ = nemo_model_of(read_yaml(archive_->read_member(kDescription), source), source,
                           request_.allow_unused);
    weights_ = archive_->open_weights();
    const std::vector<std::string> zeros = nemo_zeros(model_, *described().second);
    deck_ = parse_deck(*request_.families, nemo_deck(model_, zeros, request_.out),
                       request_.out + "/deck.json", request_.overrides);
    const ModelConfig config = model_of(deck_);
    model_.config = config.as<FastConformerConfig>();
    auto [described_model, set] = described();
    described_ = std::move(described_model);
    parameters_ = std::move(set);
    freeze_parameters(*parameters_, {deck_.train.freeze, deck_.train.unfreeze}, config);
    parts_ = nemo_parts(model_, *parameters_);
    if (model_.tokenizer.empty()) characters_ = nemo_characters(model_);
    require_fit();
    if (world_.rank() == 0) require_free_folder(request_.out);
  }

  /// The described model and its parameters. Running statistics point to the parameters, which do
  /// not point to the model.
  std::pair<std::unique_ptr<FastConformer>, std::unique_ptr<ParameterSet>> described() const {
    auto set = std::make_unique<ParameterSet>();
    auto model = std::make_unique<FastConformer>(model_.config, *set, ModelCut{});
    return {std::move(model), std::move(set)};
  }

  void require_fit() {
    std::vector<std::string> different;
    std::unordered_set<std::string> used;
    std::int64_t taken = 0;
    const auto look_at = [&](const std::string& name, const Shape& shape, std::int64_t elements) {
      const TensorEntry* entry = weights_->find(name);
      used.insert(name);
      (entry == nullptr ? fresh_ : taken) += elements;
      if (entry == nullptr)
        missing_.push_back(name);
      else if (without_ones(entry->shape) != without_ones(shape))
        different.push_back(fmt::format("{} is {}, the model has {}", name, to_string(entry->shape),
                                        to_string(shape)));
      else if (!can_convert(entry->encoding, Encoding::f32))
        different.push_back(fmt::format("{} is {}", name, name_of(entry->encoding)));
    };
    for (const NemoPart& part : parts_) look_at(part.name, part.shape, part.shape.count());
    for (const RunningStatistics& norm : parameters_->running_statistics())
      for (const bool mean : {true, false})
        look_at(nemo_statistic(norm.name, mean), norm.weight->shape, 0);
    for (const TensorEntry& entry : weights_->tensors())
      if (!used.contains(entry.name) && !is_no_weight(entry.name)) unused_.push_back(entry.name);
    require_match(taken, request_.path, missing_, unused_);
    std::string text, hint;
    const auto complain = [&](const char* what, const std::vector<std::string>& list, bool allowed,
                              const char* flag) {
      if (list.empty() || allowed) return;
      text += fmt::format("\n  {}: {}", what, join(list, ", "));
      hint += hint.empty() ? flag : fmt::format("; {}", flag);
    };
    complain("of another shape or type", different, false,
             "the description is of another model, or the file is damaged");
    complain("missing", missing_, request_.allow_missing, "--allow-missing initialises them");
    complain("unused", unused_, request_.allow_unused, "--allow-unused ignores them");
    if (!text.empty())
      throw StorageError(fmt::format("'{}' does not fit:{}", request_.path, text), hint);
    unused_.insert(unused_.end(), model_.left_out.begin(), model_.left_out.end());
  }

  /// True for tables that follow from the description, and for counters.
  static bool is_no_weight(const std::string& name) {
    return name == "preprocessor.featurizer.window" || name == "preprocessor.featurizer.fb" ||
           name.ends_with(".num_batches_tracked") || name.ends_with("pos_enc.pe");
  }

  /// Reads this rank's rows of every parameter, and its share of running statistics.
  void read() {
    const Precision precision = precision_of(deck_);
    for (const Parameter* p : parameters_->all()) {
      const DType dtype = precision.kept(p->trainable);
      const RowShare share = share_of_rows(p->shape[0], world_.rank(), world_.size());
      const std::int64_t columns = p->shape.count() / p->shape[0];
      values_.rows.emplace_back(static_cast<std::size_t>(share.rows * columns) * size_of(dtype));
      const TensorView rows{values_.rows.back().data(), dtype, {share.rows, columns}};
      // A parameter that NeMo does not have stays zero; one that lacks a part is initialised there.
      const bool lacking = std::any_of(parts_.begin(), parts_.end(), [&](const NemoPart& part) {
        return part.own == p->name && weights_->find(part.name) == nullptr;
      });
      if (lacking && share.rows > 0)
        initialise(*p, static_cast<std::uint64_t>(deck_.run.seed), rows, share.first * columns);
      for (const NemoPart& part : parts_)
        if (part.own == p->name) read_part_of(part, share, columns, rows);
    }
    for (const RunningStatistics& norm : parameters_->running_statistics())
      for (const bool mean : {true, false}) read_statistic(norm, mean, precision.statistic);
  }

  void read_part_of(const NemoPart& part, const RowShare& share, std::int64_t columns,
                    const TensorView& rows) {
    if (weights_->find(part.name) == nullptr) return;
    const std::int64_t first = std::max(share.first, part.first_row);
    const std::int64_t end = std::min(share.first + share.rows, part.first_row + part.rows);
    if (first >= end) return;
    const std::size_t row_bytes = static_cast<std::size_t>(columns) * size_of(rows.dtype);
    auto* to = static_cast<std::byte*>(rows.data) +
               static_cast<std::size_t>(first - share.first) * row_bytes;
    elements_ += (end - first) * columns;
    if (characters_ && part.own.starts_with("head."))
      return read_head_rows(part, first, end, columns, to, rows.dtype);
    const std::int64_t there = (first - part.first_row) * columns;
    weights_->read(part.name, there, (end - first) * columns, to, rows.dtype);
    check_.look(part.name, to, rows.dtype, (end - first) * columns, there);
    if (part.channels == 0) return;
    for (std::int64_t row = first; row < end; ++row, to += row_bytes)
      transpose(to, part.channels, columns / part.channels, size_of(rows.dtype));
  }

  /// Reads rows of the head in the order of our symbols; the blank stays last.
  void read_head_rows(const NemoPart& part, std::int64_t first, std::int64_t end,
                      std::int64_t columns, std::byte* to, DType dtype) {
    for (std::int64_t row = first; row < end; ++row) {
      const bool symbol = row < std::ssize(characters_->rows);
      const std::int64_t from =
          columns * (symbol ? characters_->rows[static_cast<std::size_t>(row)] : row);
      weights_->read(part.name, from, columns, to, dtype);
      check_.look(part.name, to, dtype, columns, from);
      to += static_cast<std::size_t>(columns) * size_of(dtype);
    }
  }

  void read_statistic(const RunningStatistics& norm, bool mean, DType dtype) {
    const std::string name = nemo_statistic(norm.name, mean);
    const RowShare share = share_of_rows(norm.weight->shape[0], world_.rank(), world_.size());
    statistics_.emplace_back(static_cast<std::size_t>(share.rows) * size_of(dtype));
    void* const to = statistics_.back().data();
    if (weights_->find(name) != nullptr) {
      weights_->read(name, share.first, share.rows, to, dtype);
      check_.look(name, to, dtype, share.rows, share.first);
    } else if (!mean)
      std::fill_n(static_cast<float*>(to), dtype == DType::f32 ? share.rows : 0, 1.0f);
    values_.more.push_back({.name = std::string(kRunningStatistics) + norm.name +
                                    (mean ? ".running_mean" : ".running_variance"),
                            .dtype = dtype,
                            .shape = norm.weight->shape,
                            .pieces = {{share.first, share.rows, to}}});
  }

  /// Creates the run folder, after all checks have passed, and stores the tokenizer in it.
  void keep_tokenizer() {
    make_run_folder(request_.out);
    if (model_.tokenizer.empty()) {
      if (characters_)
        values_.vocabulary = characters_->vocabulary.to_json();
      else
        kept_.emplace_back(
            "(text cannot be written: the archive names no tokenizer of its own, "
            "and its labels are not one character each)");
      return;
    }
    const fs::path folder = fs::path(request_.out) / kTokenizerFolder;
    std::error_code failed;
    fs::create_directories(folder, failed);
    const std::string path = (folder / "tokenizer.model").string();
    write_text_file(path, archive_->read_member(model_.tokenizer));
    kept_.emplace_back("tokenizer.model");
    try {
      const Vocabulary vocabulary = Vocabulary::load(path);
      if (vocabulary.size() == model_.config.vocab_size)
        values_.vocabulary = vocabulary.to_json();
      else
        kept_.push_back(fmt::format("(text cannot be written: it has {} pieces, the model {})",
                                    vocabulary.size(), model_.config.vocab_size));
    } catch (const DataError& error) {
      kept_.push_back(fmt::format("(text cannot be written: {})", error.what()));
    }
  }

  Communicator& world_;
  const ImportRequest& request_;
  std::unique_ptr<NemoArchive> archive_;
  std::unique_ptr<TorchCheckpoint> weights_;
  NemoModel model_;
  Deck deck_;
  std::unique_ptr<FastConformer> described_;
  std::unique_ptr<ParameterSet> parameters_;
  std::vector<NemoPart> parts_;
  std::optional<NemoCharacters> characters_;  ///< of an archive without a tokenizer
  std::vector<std::string> missing_, unused_, kept_;
  ImportedValues values_;
  FiniteCheck check_;
  std::vector<std::vector<std::byte>> statistics_;
  std::int64_t elements_ = 0, fresh_ = 0;
};

}  // namespace

bool is_nemo(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string begin(kFileKindBytes, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  const FileKind kind = file_kind(begin);
  return kind == FileKind::tar || kind == FileKind::gzip;
}

ImportReport import_nemo(Communicator& world, const ImportRequest& request) {
  return NemoImport(world, request).run();
}

}  // namespace choir
