#pragma once
// What the memory plan allows, really tried: the engine of a deck and steps of its largest
// micro-batches on the device on which training would run. The plan knows what the program
// allocates; what the driver, libraries and other processes take shows here alone.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/train/step/step_planner.hpp"
#include "choir/train/step/workplace.hpp"

namespace choir {

struct StepProbe {
  bool ran = false;
  std::string why;     ///< it did not
  double planned = 0;  ///< bytes of the fullest rank
  /// Bytes by which the rank that took most grew: on a GPU of its card, else of resident memory.
  double taken = 0;
  double seconds = 0;              ///< of the last step, on the slowest rank
  std::int64_t micro_batches = 0;  ///< of that step, a rank
};

/// Collective over the mesh of `place`, whose device is open. `deck` knows its vocabulary. Two
/// steps of full micro-batches of each shape (none: of the family's one), of silence or token 0,
/// and no more of them than a pipeline keeps in flight. Memory that is not there is met by all
/// ranks together and told. What fails later is told where there is one rank; of several the
/// failing one throws, and the program ends.
StepProbe probe_step(const Deck& deck, const std::vector<BatchShape>& shapes,
                     const std::vector<BatchShape>& evaluation_shapes, Workplace& place);

/// "ran, 12 ms a step of 2 micro-batches; planned 1.0 MiB a rank, taken 1.2 MiB".
std::string to_string(const StepProbe& probe);

/// Bytes of host memory that processes can still get here: of the system, and within the limit of
/// the control group, as that of a SLURM job. `root` is prepended to /proc and /sys. 0: not known.
double memory_left(const std::string& root = "");

}  // namespace choir
