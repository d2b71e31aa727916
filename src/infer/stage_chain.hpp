#pragma once
// A forward pass through all pieces of a model, stage by stage, for evaluation and generation.
// Consecutive passes overlap: a stage begins the next pass while later stages still work on this
// one.
#include "choir/comm/communicator.hpp"
#include "choir/models/model.hpp"

namespace choir {

/// Collective over `stages`. Returns the result of the last piece (see Model::forward) on the last
/// stage, and an empty tensor on the others.
Tensor forward_through_stages(Model& model, Pass& pass, const ModelBatch& batch, BucketHooks& hooks,
                              Communicator& stages);

}  // namespace choir
