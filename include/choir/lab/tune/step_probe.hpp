#pragma once
// A real trial of a memory plan: the engine of a deck runs steps of its largest micro-batches on
// the training device. The plan only counts the allocations of the program; only a trial shows the
// memory used by the driver, libraries and other processes.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/train/step/step_planner.hpp"
#include "choir/train/step/workplace.hpp"

namespace choir {

struct StepProbe {
  bool ran = false;
  std::string why;     ///< reason if it did not run
  double planned = 0;  ///< planned bytes of the fullest rank
  /// Memory growth of the rank that grew most: on a GPU the used memory of its GPU, else resident
  /// memory.
  double taken = 0;
  double seconds = 0;              ///< duration of the last step on the slowest rank
  std::int64_t micro_batches = 0;  ///< micro-batches of that step per rank
};

/// Runs two steps of full micro-batches of each shape (no shapes: the family's only one) with
/// silence or token 0, and with no more micro-batches than a pipeline has in flight. The vocabulary
/// size of `deck` is known, and the device of `place` is open. If memory is missing at the start,
/// all ranks agree on it and the result has the reason. A later failure is in the result if there
/// is one rank; with several, the failing rank throws and the program ends. Collective over the
/// mesh of `place`.
StepProbe probe_step(const Deck& deck, const std::vector<BatchShape>& shapes,
                     const std::vector<BatchShape>& evaluation_shapes, Workplace& place);

/// Formats a probe: "ran, 12 ms a step of 2 micro-batches; planned 1.0 MiB a rank, taken 1.2 MiB".
std::string to_string(const StepProbe& probe);

/// Returns the bytes of host memory that processes can still get: of the system, and within the
/// limit of the control group, for example of a SLURM job. `root` is prepended to /proc and /sys.
/// 0: unknown.
double memory_left(const std::string& root = "");

}  // namespace choir
