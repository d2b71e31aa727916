#pragma once
// The tensors that a training run stores, and their restoration: parameters, moments and progress.
#include <string>
#include <vector>

#include "src/run/stored_model.hpp"
#include "src/store/store.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// Parameters, moments, running statistics and progress: the pieces that this rank saves. Ranks
/// that hold the same elements divide the writing.
std::vector<StoredTensor> tensors_to_save(Engine& engine, Progress& progress);
/// The same, but everything that this rank holds, for loading; ModelInstance::publish() must
/// follow.
std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress);
/// Reduced gradients of the last finished step ("gradients/NAME"): everything that this rank holds,
/// or its part of the writing. For comparisons; they are not part of a checkpoint. Local.
std::vector<StoredTensor> gradient_tensors(Engine& engine, bool owned_only);

/// Throws CommError on every rank unless ranks that hold the same elements hold equal values.
/// `what` as in require_equal(). Collective over the mesh.
void require_equal_parameters(Engine& engine, const std::string& what);

}  // namespace choir
