#pragma once
// One sentence on how a run spent its time, for users who want it to be faster.
#include <string>
#include <vector>

#include "choir/train/loop/core_shortage.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

struct RunTimes {
  PhaseTotals phases;               ///< of the rank that prints
  std::vector<double> own;          ///< seconds per step of each rank, without waiting for others
  std::vector<double> outside;      ///< the part of `own` outside forward and backward
  std::vector<double> deviation;    ///< standard deviation of `own` over the steps
  std::vector<CoreShortage> cores;  ///< of each rank, in the whole run
  std::vector<std::string> hosts;   ///< host of each rank
  /// Fraction of the wall time outside the start, steps, evaluations and saves.
  double between_steps = 0;
};

/// Returns the first applicable diagnosis of: a slow rank, cores used by other processes, slow
/// data, a slow network, time between steps, kernels. A rank is slow if it exceeds the others by
/// more than the spread of its steps and by more than it waited for cores. "" for a run without
/// steps; after few steps the text says that they show nothing. Pure.
std::string diagnosis(const RunTimes& times);

/// Describes the rank that lacks CPU cores most: "rank 1 (host n2): its threads waited 43 % of the
/// time for a CPU core (812 involuntary switches), ..."; "" if no rank lacks a tenth of its time.
/// Pure.
std::string busy_cores(const std::vector<CoreShortage>& cores,
                       const std::vector<std::string>& hosts);

}  // namespace choir
