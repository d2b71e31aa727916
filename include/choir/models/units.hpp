#pragma once
// The units between which a model can be cut: unit 0 is the input layer (embedding, subsampling),
// units 1 ... L are the blocks, unit L + 1 is the head with the layers directly before it.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace choir {

/// Consecutive units: [first, first + count).
struct UnitRange {
  int first = 0;
  int count = 0;
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
  int end() const { return first + count; }
  bool contains(int unit) const { return unit >= first && unit < end(); }
};

/// The distribution of a model over the stages of a pipeline.
struct ModelCut {
  /// The pieces of this rank in the model's order; a piece may be the input layer or the head
  /// alone. Empty: one piece with everything.
  std::vector<UnitRange> pieces;
  /// Tied weights: head and embedding each keep a copy with a gradient of its own, even on one
  /// rank, so that sums of gradients do not depend on the cut.
  bool separate_tied = false;
};

/// The cost of each unit, in any measure, such as FLOPs or seconds for one micro-batch.
using UnitCosts = std::vector<double>;
/// The costs of a model whose blocks are alike.
inline UnitCosts alike(double input, double block, double head, std::int64_t blocks) {
  UnitCosts costs(static_cast<std::size_t>(blocks) + 2, block);
  costs.front() = input;
  costs.back() = head;
  return costs;
}

}  // namespace choir
