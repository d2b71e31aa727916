#pragma once
// NeMo's recognisers (.nemo): the description of a model by model_config.yaml (a FastConformer with
// a CTC head, possibly beside a transducer), the import as FastConformer runs, for transcription,
// for training, and as the encoder of a SALM, and the export of such runs.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/nn/parameter_set.hpp"
#include "src/core/json_value.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/run/exported_model.hpp"
#include "src/run/imported_run.hpp"

namespace choir {

struct NemoModel {
  FastConformerConfig config;
  bool biases = true;     ///< biases of the layers in blocks; if false, choir's stay zero
  std::string head;       ///< prefix of its tensors: "decoder." or "ctc_decoder."
  std::string tokenizer;  ///< member of the archive with its SentencePiece model, or ""
  /// The texts of the symbols without the blank, in the order of their numbers; may be empty.
  std::vector<std::string> labels{};
  /// Settings of the description that the keys of a deck cannot express, as "KEY = VALUE (why)".
  std::vector<std::string> left_out{};
};

/// Converts the result of read_yaml(). DeckError that lists every key of the encoder and of its
/// features whose value is unsupported or unknown, by its name.
NemoModel nemo_model_of(const nlohmann::json& yaml, const std::string& source, bool allow_unknown);

/// The member with the list of pieces that belongs to the SentencePiece model `tokenizer`.
std::string nemo_piece_list(const std::string& tokenizer);
/// The model_config.yaml with which NeMo restores the model: of the class EncDecCTCModelBPE if it
/// has a tokenizer, else of EncDecCTCModel. DeckError that names the keys whose values NeMo lacks.
std::string nemo_description(const NemoModel& model);

/// A tensor of NeMo, and the rows of our tensor that it corresponds to.
struct NemoPart {
  std::string own, name;
  std::int64_t first_row = 0, rows = 0;
  Shape shape;  ///< in NeMo
  std::int64_t channels =
      0;  ///< > 0: rows are [channels, frequencies] in NeMo, and transposed here
};
/// All tensors of the model except running statistics, in the order of the parameters.
std::vector<NemoPart> nemo_parts(const NemoModel& model, const ParameterSet& parameters);
/// In place: a row-major matrix [rows, columns] of elements of `width` bytes becomes [columns,
/// rows].
void transpose(std::byte* matrix, std::int64_t rows, std::int64_t columns, std::size_t width);
/// The shape without dims of 1: a matrix and a convolution of width 1 have the same elements.
Shape without_ones(const Shape& shape);
/// NeMo's name of the mean or the variance of our norm.
std::string nemo_statistic(const std::string& norm, bool mean);
/// Patterns of our parameters that NeMo's model does not have, for train.freeze.
std::vector<std::string> nemo_zeros(const NemoModel& model, const ParameterSet& parameters);

/// Local. True if the file is a tar archive, perhaps compressed, like .nemo; false for unreadable
/// files.
bool is_nemo(const std::string& path);

/// Collective; the same report on every rank. Errors as for import_model(). Nothing in the archive
/// is executed.
ImportReport import_nemo(Communicator& world, const ImportRequest& request);

/// Collective; the same report on every rank. Errors as for export_model().
ExportReport export_nemo(Communicator& world, const Checkpoint& checkpoint,
                         const FastConformerConfig& config, const ExportRequest& request);

}  // namespace choir
