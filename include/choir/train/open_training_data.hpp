#pragma once
// The training data of any kind of model.
#include <memory>

#include "choir/core/log.hpp"
#include "choir/train/engine/training_data.hpp"

namespace choir {

/// Collective over the mesh. Opens what the deck names.
std::unique_ptr<TrainingData> open_training_data(const Deck& deck, const BatchSizes& batch,
                                                 Mesh& mesh, Logger& log);

}  // namespace choir
