#pragma once
// Averaged weights (train.ema) in checkpoints: "ema/" and the name of the tensor that is averaged,
// "ema/parameters/NAME" or "ema/state/running/NAME". Their types are those of gradients and of
// statistics, f32 (f64 with fp64), also beside bf16 masters, and their shapes those of the tensors
// that they average. Frozen parameters have none.
//
// Readers of models know nothing of averages: they are given a checkpoint in which the averages are
// not listed, or one in which they have the names of what they average. All functions are local.
//
// A run that resumes a checkpoint without averages begins them there, and a run without train.ema
// drops those of its checkpoint.

#include <string>
#include <string_view>
#include <vector>

#include "src/store/open.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

/// Prefix of the names of averages.
inline constexpr std::string_view kAverages = "ema/";

/// The number of the update that is averaged first, i64 [1].
inline constexpr std::string_view kFirstAverage = "ema/first_update";

/// True if the run that wrote the checkpoint had train.ema > 0.
bool has_averages(const Checkpoint& checkpoint);

/// The checkpoint as one of the weights alone: its averages are not listed.
Checkpoint without_averages(Checkpoint checkpoint);

/// The checkpoint with its averages in the place of the weights and statistics that they average,
/// for readers that know nothing of averages. Throws DeckError if it has none.
Checkpoint with_averages(Checkpoint checkpoint);

/// Removes the averages from a list of tensors to load, for a checkpoint that has none.
void remove_averages(std::vector<StoredTensor>& tensors);

}  // namespace choir
