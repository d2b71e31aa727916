#pragma once
// How far down backward has to go: to the lowest unit of the model (choir/models/units.hpp) with
// something to train. What lies below runs forward only, and keeps nothing.
#include <cstddef>
#include <vector>

#include "choir/models/units.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class TrainedUnits {
 public:
  /// What is added to the parameters from here on belongs to the next unit, 0 first.
  void begin_unit(const ParameterSet& parameters) { begins_.push_back(parameters.all().size()); }
  /// After parameters were frozen, those of other stages included. Until then all are trained.
  void find(const ParameterSet& parameters);
  /// Backward passes through this unit.
  bool reach(int unit) const { return unit >= lowest_; }
  int lowest() const { return lowest_; }
  /// FLOPs of forward and backward, where the costs are those of the forward of each unit: as much
  /// again for the gradient of what it reads, as far down as backward goes, and for those of its
  /// weights, as many of them as are trained.
  double flops(const UnitCosts& costs) const;

 private:
  std::vector<std::size_t> begins_;  // of each unit, in ParameterSet::all()
  std::vector<double> trained_;      // share of the numbers of each unit; empty: all are
  int lowest_ = 0;
};

}  // namespace choir
