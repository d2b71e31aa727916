#pragma once
// What follows from a shard spec: which elements of a logical tensor a rank holds, which of them it
// answers for, and which gradients are sums over ranks. Pure functions of the description, for any
// rank of any number.
#include <vector>

#include "choir/nn/parameter.hpp"

namespace choir {

/// Consecutive elements of the logical tensor that are consecutive in what a rank holds.
struct ShardRun {
  std::int64_t logical = 0, local = 0, count = 0;
  bool owned = true;  ///< of the ranks that hold it this one counts and stores it
};

/// Consecutive local elements.
struct LocalRange {
  std::int64_t first = 0, count = 0;
};

/// A gradient that ranks hold in part: their `count` elements from `local` on are terms of elements
/// [place, place + count) of `size` that the ranks have together.
struct PartialRun {
  std::int64_t local = 0, count = 0;
  std::int64_t place = 0, size = 0;
};

/// Throws Error when the spec cannot be cut so; decks are checked before.
Shape local_shape(const Shape& logical, const ShardSpec& spec, const TensorSplit& split);

/// In the order of local elements; padding is in no run.
std::vector<ShardRun> shard_runs(const Shape& logical, const ShardSpec& spec,
                                 const TensorSplit& split);
inline std::vector<ShardRun> shard_runs(const Parameter& p) {
  return shard_runs(p.shape, p.shard, p.split);
}

/// The owned runs of a rank, neighbours joined: over all ranks every element once.
std::vector<LocalRange> owned_ranges(const Parameter& p, int rank);

/// Empty when this rank's gradient is whole.
std::vector<PartialRun> partial_runs(const Parameter& p);

}  // namespace choir
