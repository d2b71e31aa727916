#pragma once
// Units of a model, between which it can be cut (unit 0 is the input layer: embedding or
// subsampling; units 1 ... L are the blocks; unit L + 1 is the head with the layers directly before
// it), the pieces of consecutive units that a rank holds, and the lowest unit with trainable
// parameters, at which backward stops.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "choir/nn/parameter_set.hpp"

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

/// A plain value. Local.
class ModelPieces {
 public:
  struct Piece {
    bool input = false, head = false;
    int first_unit = 0, last_unit = 0;
    bool contains(int unit) const { return unit >= first_unit && unit <= last_unit; }
  };
  /// Cuts a model of `layers` blocks. The ranges of the cut are in the order of the model.
  ModelPieces(const ModelCut& cut, std::int64_t layers);

  int count() const { return static_cast<int>(pieces_.size()); }
  const Piece& operator[](int index) const;
  bool resident(int unit) const;
  bool has_input() const { return resident(0); }
  bool has_head() const { return resident(units_ - 1); }
  /// True if the pieces cover the whole model.
  bool whole() const { return whole_; }

 private:
  int units_;
  std::vector<UnitRange> ranges_;
  std::vector<Piece> pieces_;
  bool whole_ = false;
};

class TrainedUnits {
 public:
  /// Parameters that are added from here on belong to the next unit; the first is unit 0.
  void begin_unit(const ParameterSet& parameters) { begins_.push_back(parameters.all().size()); }
  /// Call after parameters were frozen, those of other stages included. Until then all count as
  /// trained.
  void find(const ParameterSet& parameters);
  /// True if backward passes through this unit.
  bool reach(int unit) const { return unit >= lowest_; }
  int lowest() const { return lowest_; }
  /// FLOPs of forward and backward, given the forward costs of each unit. The gradient of a unit's
  /// input costs as much again, as far down as backward goes. The gradient of its weights costs as
  /// much again, times the share of them that is trained.
  double flops(const UnitCosts& costs) const;

 private:
  std::vector<std::size_t>
      begins_;  // first parameter of each unit, an index into ParameterSet::all()
  std::vector<double>
      trained_;  // trained share of each unit's elements; empty: everything is trained
  int lowest_ = 0;
};

}  // namespace choir
