#pragma once
// What a model can be cut between: unit 0 is the embedding, 1 ... L the layers, L + 1 the final
// norm with the head.

namespace choir {

/// Consecutive units: [first, first + count).
struct UnitRange {
  int first = 0;
  int count = 0;
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
  int end() const { return first + count; }
  bool contains(int unit) const { return unit >= first && unit < end(); }
};

/// Costs of units, in any one measure, such as FLOPs or seconds for one micro-batch.
struct ModelCosts {
  double embedding = 0;
  double layer = 1;
  double head = 0;
};

}  // namespace choir
