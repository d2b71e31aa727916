#pragma once
// How far down backward has to go: to the lowest unit of the model (choir/models/units.hpp) with
// something to train. What lies below runs forward only, and keeps nothing.
#include <cstddef>
#include <vector>

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

 private:
  std::vector<std::size_t> begins_;  // of each unit, in ParameterSet::all()
  int lowest_ = 0;
};

}  // namespace choir
