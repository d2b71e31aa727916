#pragma once
// Any model from its value.
#include <memory>

#include "choir/model/model.hpp"
#include "choir/model/model_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Describes all parameters and registers those of the pieces of `cut`, see ModelCut.
std::unique_ptr<Model> make_model(const ModelConfig& config, ParameterSet& parameters,
                                  const ModelCut& cut = {});

/// Of the forward of one sequence of the block size, or of ten seconds of audio: FLOPs, for dealing
/// units out to stages.
ModelCosts unit_costs(const ModelConfig& config);

}  // namespace choir
