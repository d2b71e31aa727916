#pragma once
// One sentence about what a run spent its time on, for who wants it to be faster.
#include <string>
#include <vector>

#include "choir/train/loop/core_shortage.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

struct RunTimes {
  PhaseTotals phases;               ///< of the rank that speaks
  std::vector<double> own;          ///< seconds a step of each rank, without waiting for others
  std::vector<double> outside;      ///< of it outside forward and backward
  std::vector<double> deviation;    ///< of `own` from step to step
  std::vector<CoreShortage> cores;  ///< of each rank, in the whole run
  std::vector<std::string> hosts;   ///< of each rank
  /// Share of the wall time that is neither the start nor steps, evaluations or saves.
  double between_steps = 0;
};

/// Pure. The first that holds of: a slow rank, cores that others use, slow data, a slow network,
/// time between steps, kernels. A rank is slow by more than the spread of its steps, and by more
/// than it waited for cores. "" for a run without steps; few steps show nothing, and it says so.
std::string diagnosis(const RunTimes& times);

/// Pure. "threads of rank 1 on n2 waited 43 % of the time for a core (812 involuntary switches),
/// and a hypervisor took 3 %: ..."; of the rank that lacks cores most, "" where none lacks a tenth.
std::string busy_cores(const std::vector<CoreShortage>& cores,
                       const std::vector<std::string>& hosts);

}  // namespace choir
