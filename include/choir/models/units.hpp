#pragma once
// What a model can be cut between: unit 0 is the input layer (embedding, subsampling), 1 ... L the
// blocks, L + 1 the head with what stands before it.
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

/// How a model is spread over the stages of a pipeline.
struct ModelCut {
  /// What this rank has, in the model's order; a piece may be the input layer or the head alone.
  /// Empty: one piece with everything.
  std::vector<UnitRange> pieces;
  /// Tied weights: head and embedding keep a copy each, with a gradient of its own, even on one
  /// rank: sums of gradients then do not depend on where the model is cut.
  bool separate_tied = false;
};

/// What each unit costs, in any one measure, such as FLOPs or seconds for one micro-batch.
using UnitCosts = std::vector<double>;
/// The costs of a model whose blocks are alike.
inline UnitCosts alike(double input, double block, double head, std::int64_t blocks) {
  UnitCosts costs(static_cast<std::size_t>(blocks) + 2, block);
  costs.front() = input;
  costs.back() = head;
  return costs;
}

}  // namespace choir
