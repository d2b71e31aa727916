#pragma once
// A forward pass through all pieces of a model, stage after stage, for evaluation and generation.
// Passes that follow one another overlap by themselves: a stage begins the next one while those
// behind it work on this one.
#include "choir/comm/communicator.hpp"
#include "choir/models/model.hpp"

namespace choir {

/// Collective over `stages`. What the last piece returns (see Model::forward) on the last stage,
/// empty on the others.
Tensor forward_through_stages(Model& model, Pass& pass, const ModelBatch& batch, BucketHooks& hooks,
                              Communicator& stages);

}  // namespace choir
