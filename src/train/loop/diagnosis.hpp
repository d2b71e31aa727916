#pragma once
// One sentence about what a run spent its time on, for who wants it to be faster.
#include <string>
#include <vector>

#include "choir/train/step/phase_clock.hpp"

namespace choir {

struct RunTimes {
  PhaseTotals phases;              ///< of the rank that speaks
  std::vector<double> own;         ///< seconds a step of each rank, without waiting for others
  std::vector<double> outside;     ///< of it outside forward and backward
  std::vector<std::string> hosts;  ///< of each rank
  /// Share of the wall time that is neither the start nor steps, evaluations or saves.
  double between_steps = 0;
};

/// Pure. The first that holds of: a slow rank, slow data, a slow network, time between steps,
/// kernels. "" for a run without steps.
std::string diagnosis(const RunTimes& times);

}  // namespace choir
