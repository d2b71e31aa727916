#pragma once
// Training of a part of a model: train.freeze and train.unfreeze.
#include <string>
#include <vector>

#include "choir/models/model_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Name patterns (src/deck/name_patterns.hpp) of parameters that are not trained, and of
/// exceptions among them that are trained.
struct Freezing {
  std::vector<std::string> freeze, unfreeze;
};

/// Local, the same on every rank; called before the parameters are placed. A copy of a tied weight
/// is frozen together with its original and has no name of its own here. Throws DeckError for a
/// pattern that matches nothing, for one of train.unfreeze that matches no frozen parameter, and if
/// nothing remains to train.
void freeze_parameters(ParameterSet& parameters, const Freezing& freezing,
                       const ModelConfig& model);

/// Local. Number of units at the start of the model that backward does not reach.
int units_without_backward(const Freezing& freezing, const ModelConfig& model);

}  // namespace choir
