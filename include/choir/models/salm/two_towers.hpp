#pragma once
// What models of an encoder before a decoder share.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/fastconformer/encoder_tower.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/models/pieces.hpp"

namespace choir {

/// Where tables behind those of the encoder begin, so that they are aligned.
std::size_t tables_behind(const EncoderTower& encoder, const Precision& precision);

/// Backward comes from the head to the embedding, which is in the junction, before another
/// micro-batch comes between.
bool ends_meet(const ModelPieces& pieces, int junction);

/// How many numbers the parameters have whose names begin so.
std::int64_t parameters_of(const ParameterSet& parameters, std::string_view prefix);

/// FLOPs of the forward of one micro-batch with so many clips of audio, for each unit: features and
/// subsampling, the encoder's blocks, the junction with its projector, the decoder's blocks, head.
UnitCosts two_tower_costs(const FastConformerConfig& encoder, const GptConfig& lm,
                          const BatchShape& shape, std::int64_t clips);

/// What a tower alone would say of itself ("model.n_head = 3 ..."), in the words of the section
/// that it is in.
std::vector<KeyProblem> within(const std::string& section, std::vector<KeyProblem> problems);

}  // namespace choir
