// The export of a recogniser as a .nemo file.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/features/features.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/fastconformer.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "src/run/exported_model.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/collectives.hpp"
#include "src/store/torch/nemo_writer.hpp"

namespace choir {
namespace {

constexpr std::string_view kBlank = "\u2581";  // a blank in a piece of SentencePiece

/// NeMo's list of pieces: those inside of words begin with "##", and the first one, <unk>, is left
/// out.
std::string piece_list(const std::vector<std::string>& pieces) {
  std::string list;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const std::string& piece = pieces[i];
    const bool begins_word = piece.starts_with(kBlank);
    const std::string text = begins_word ? piece.substr(kBlank.size()) : "##" + piece;
    list += (text.empty() ? piece : text) + '\n';
  }
  return list;
}

class NemoExport {
 public:
  NemoExport(Communicator& world, const Checkpoint& checkpoint, const FastConformerConfig& config,
             const ExportRequest& request)
      : world_(world), checkpoint_(checkpoint), request_(request), described_(config, parameters_) {
    model_.config = config;
    model_.head = "decoder.";
  }

  ExportReport run() {
    together(world_, [&] { prepare(); });
    together(world_, [&] {
      if (world_.rank() != 0) return;
      make_output_folder(request_.out, false);
      writer_->lay_out();
    });
    for (const Parameter* p : parameters_.all())
      write("parameters/" + p->name, p->shape, [&](const RowSlab& slab) {
        for (const NemoPart& part : parts_)
          if (part.own == p->name) write_part(part, p->shape, slab);
      });
    for (const RunningStatistics& norm : parameters_.running_statistics())
      for (const bool mean : {true, false})
        write(own_statistic(norm, mean), norm.weight->shape, [&](const RowSlab& slab) {
          writer_->write(nemo_statistic(norm.name, mean), slab.first, slab.rows, slab.data,
                         slab.dtype);
        });
    together(world_, [&] {
      if (world_.rank() == 0) write_tables();
      writer_->sync();
    });
    std::int64_t written = writer_->written();
    world_.all_reduce(&written, 1, DType::i64, ReduceOp::sum);
    exclusive_or(world_, writer_->checksums());
    together(world_, [&] {
      if (world_.rank() == 0) writer_->commit(written);
    });
    report_.files = {request_.out};
    report_.bytes = writer_->bytes();
    report_.type = request_.type;
    return report_;
  }

 private:
  void prepare() {
    if (request_.merge)
      throw DeckError("--merge is for models with adapters, and recognisers have none",
                      "leave it out");
    choose_type();
    describe_symbols();
    members_.insert(members_.begin(), {"model_config.yaml", nemo_description(model_)});
    parts_ = nemo_parts(model_, parameters_);
    if (world_.rank() == 0) require_free_output(request_.out, false);
    writer_ = std::make_unique<NemoWriter>(request_.out, members_, entries());
  }

  void choose_type() {
    for (const Encoding type : {Encoding::f32, Encoding::f16, Encoding::bf16})
      if (fold_name(name_of(type)) == request_.type) {
        type_ = type;
        return;
      }
    throw DeckError(fmt::format("--type {} is not supported by --format nemo", request_.type),
                    "use f32, f16 or bf16");
  }

  /// The labels of the head, and the files of the tokenizer.
  void describe_symbols() {
    const std::int64_t symbols = model_.config.vocab_size;
    if (request_.vocabulary.empty()) {
      for (std::int64_t i = 0; i < symbols; ++i) model_.labels.push_back(fmt::format("<{}>", i));
      report_.notes.emplace_back(
          "the run has no vocabulary, so that the labels are the numbers of the symbols: <0>, <1> "
          "and so on");
      return;
    }
    const Vocabulary vocabulary = Vocabulary::from_json(request_.vocabulary, "the checkpoint");
    CHOIR_CHECK(vocabulary.size() == symbols, "{} units and {} symbols", vocabulary.size(),
                symbols);
    if (vocabulary.kind() == VocabularyKind::character) {
      for (int id = 0; id < vocabulary.size(); ++id) model_.labels.push_back(vocabulary.piece(id));
      return;
    }
    if (vocabulary.kind() != VocabularyKind::sentencepiece)
      throw DeckError(fmt::format("--format nemo cannot express data.labels of the kind '{}'",
                                  name_of(vocabulary.kind())),
                      "NeMo's CTC models have characters or pieces of SentencePiece: train on "
                      "labels of `choir prepare tokenizer --type char`, bpe or unigram");
    const std::string bytes = sentencepiece_bytes(vocabulary.to_json());
    for (auto& piece : SentencePieceFile::parse(bytes, "the checkpoint").pieces)
      model_.labels.push_back(std::move(piece.text));
    model_.tokenizer = fmt::format("{:032x}_tokenizer.model", vocabulary.hash());
    members_ = {{model_.tokenizer, bytes},
                {nemo_piece_list(model_.tokenizer), piece_list(model_.labels)}};
  }

  /// Statistics and tables are f32, whatever the type of the weights is.
  std::vector<TensorEntry> entries() const {
    const ops::MelOptions& mel = model_.config.mel;
    std::vector<TensorEntry> all{{kWindow, Encoding::f32, {mel.window}},
                                 {kFilters, Encoding::f32, {1, mel.mels, mel.fft / 2 + 1}}};
    for (const NemoPart& part : parts_) all.push_back({part.name, type_, part.shape});
    for (const RunningStatistics& norm : parameters_.running_statistics()) {
      for (const bool mean : {true, false})
        all.push_back({nemo_statistic(norm.name, mean), Encoding::f32, norm.weight->shape});
      all.push_back({counter(norm), Encoding::i64, {}});
    }
    return all;
  }

  static std::string own_statistic(const RunningStatistics& norm, bool mean) {
    return std::string(kRunningStatistics) + norm.name +
           (mean ? ".running_mean" : ".running_variance");
  }

  static std::string counter(const RunningStatistics& norm) {
    const std::string name = nemo_statistic(norm.name, true);
    return name.substr(0, name.rfind('.')) + ".num_batches_tracked";
  }

  /// Collective. `use` writes rows of a tensor of the checkpoint.
  void write(const std::string& name, const Shape& shape,
             const std::function<void(const RowSlab&)>& use) {
    const TensorRecord* record = checkpoint_.manifest.find(name);
    CHOIR_CHECK(record != nullptr, "no {}", name);
    const SlabSource tensor{name, shape, record->dtype};
    for_each_slab(checkpoint_, world_, tensor, [&](const RowSlab& slab) {
      require_finite_slab(checkpoint_, tensor, slab);
      use(slab);
    });
  }

  void write_part(const NemoPart& part, const Shape& shape, const RowSlab& slab) {
    const std::int64_t first = std::max(slab.first, part.first_row);
    const std::int64_t end = std::min(slab.first + slab.rows, part.first_row + part.rows);
    if (first >= end) return;
    const std::int64_t columns = shape.count() / shape[0];
    const std::size_t row_bytes = static_cast<std::size_t>(columns) * size_of(slab.dtype);
    std::byte* const rows = slab.data + static_cast<std::size_t>(first - slab.first) * row_bytes;
    for (std::int64_t row = 0; part.channels > 0 && row < end - first; ++row)
      transpose(rows + static_cast<std::size_t>(row) * row_bytes, columns / part.channels,
                part.channels, size_of(slab.dtype));
    writer_->write(part.name, (first - part.first_row) * columns, (end - first) * columns, rows,
                   slab.dtype);
  }

  /// The window, the mel filters, and the counters of batches, which only an average without a
  /// momentum reads.
  void write_tables() {
    const ops::MelOptions& mel = model_.config.mel;
    const std::vector<double> tables = mel_tables(mel);
    const MelTableLayout at = mel_table_layout(mel);
    writer_->write(kWindow, 0, mel.window, tables.data(), DType::f64);
    const std::int64_t bins = mel.fft / 2 + 1;
    std::vector<double> filter(static_cast<std::size_t>(bins));
    for (std::int64_t m = 0; m < mel.mels; ++m) {
      const double* const band = tables.data() + at.bands + 3 * m;
      const double* const weights = tables.data() + at.weights + std::llround(band[2]);
      std::fill(filter.begin(), filter.end(), 0.0);
      std::copy_n(weights, std::llround(band[1]), filter.begin() + std::llround(band[0]));
      writer_->write(kFilters, m * bins, bins, filter.data(), DType::f64);
    }
    const std::int64_t none = 0;
    for (const RunningStatistics& norm : parameters_.running_statistics())
      writer_->write(counter(norm), 0, 1, &none, DType::i64);
  }

  static constexpr const char* kWindow = "preprocessor.featurizer.window";
  static constexpr const char* kFilters = "preprocessor.featurizer.fb";

  Communicator& world_;
  const Checkpoint& checkpoint_;
  const ExportRequest& request_;
  NemoModel model_;
  ParameterSet parameters_;
  FastConformer described_;  // the statistics of its norms are in the set of parameters
  Encoding type_ = Encoding::f32;
  std::vector<NemoMember> members_;
  std::vector<NemoPart> parts_;
  std::unique_ptr<NemoWriter> writer_;
  ExportReport report_;
};

}  // namespace

ExportReport export_nemo(Communicator& world, const Checkpoint& checkpoint,
                         const FastConformerConfig& config, const ExportRequest& request) {
  return NemoExport(world, checkpoint, config, request).run();
}

}  // namespace choir
