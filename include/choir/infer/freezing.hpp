#pragma once
// Training a part of a model: train.freeze and train.unfreeze.
#include <string>
#include <vector>

#include "choir/models/model_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Name patterns (choir/deck/name_patterns.hpp) of parameters that are not trained, and of
/// those among them that are nevertheless.
struct Freezing {
  std::vector<std::string> freeze, unfreeze;
};

/// Local, the same on every rank; before the parameters are placed. A copy of a tied weight goes
/// with what it is a copy of and has no name of its own here. DeckError for a pattern that matches
/// nothing, for one of train.unfreeze that takes nothing back, and when nothing is left to train.
void freeze_parameters(ParameterSet& parameters, const Freezing& freezing,
                       const ModelConfig& model);

/// Local. How many units at the start of the model backward does not reach then.
int units_without_backward(const Freezing& freezing, const ModelConfig& model);

}  // namespace choir
