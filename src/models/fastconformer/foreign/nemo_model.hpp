#pragma once
// A recogniser of NeMo, as its model_config.yaml describes it: FastConformers with a CTC head, also
// beside a transducer.
#include <string>
#include <vector>

#include "choir/core/json_value.hpp"
#include "choir/models/fastconformer/fastconformer_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

struct NemoModel {
  FastConformerConfig config;
  bool biases = true;     ///< of the layers of blocks; choir's then stay zero
  std::string head;       ///< what its tensors begin with: "decoder." or "ctc_decoder."
  std::string tokenizer;  ///< the member of the archive that is its SentencePiece model, or ""
};

/// From read_yaml(). DeckError that lists every key of the encoder and of its features whose value
/// is not supported or not known, by its name.
NemoModel nemo_model_of(const nlohmann::json& yaml, const std::string& source, bool allow_unknown);

/// A tensor of NeMo, and the rows of ours that are its.
struct NemoPart {
  std::string own, name;
  std::int64_t first_row = 0, rows = 0;
  Shape shape;                ///< there, without dims of 1
  std::int64_t channels = 0;  ///< > 0: rows are [channels, frequencies] there, and the reverse here
};
/// All tensors of the model but running statistics, in the order of the parameters.
std::vector<NemoPart> nemo_parts(const NemoModel& model, const ParameterSet& parameters);
/// A matrix and a convolution of width 1 hold the same.
Shape without_ones(const Shape& shape);
/// What NeMo calls the mean or the variance of a norm of ours.
std::string nemo_statistic(const std::string& norm, bool mean);
/// Parameters of ours that NeMo's model does not have, as patterns, for train.freeze.
std::vector<std::string> nemo_zeros(const NemoModel& model, const ParameterSet& parameters);

}  // namespace choir
