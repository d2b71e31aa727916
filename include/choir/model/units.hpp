#pragma once
// What a model can be cut between: unit 0 is the input layer (embedding, subsampling), 1 ... L the
// blocks, L + 1 the head with what stands before it.
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
  /// Of this rank, in the order of the model; a piece may be the input layer or the head alone.
  /// Empty: one piece with everything.
  std::vector<UnitRange> pieces;
  /// Tied weights: head and embedding keep a copy each, with a gradient of its own, even on one
  /// rank: sums of gradients then do not depend on where the model is cut.
  bool separate_tied = false;
};

/// Costs of units, in any one measure, such as FLOPs or seconds for one micro-batch.
struct ModelCosts {
  double embedding = 0;
  double layer = 1;
  double head = 0;
};

}  // namespace choir
