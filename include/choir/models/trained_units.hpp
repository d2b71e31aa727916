#pragma once
// The lowest unit of a model (choir/models/units.hpp) that has trainable parameters. Backward stops
// there; units below it only run forward and save nothing.
#include <cstddef>
#include <vector>

#include "choir/models/units.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

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
