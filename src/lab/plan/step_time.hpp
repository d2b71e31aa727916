#pragma once
// The model that predicts the time of a step, from the work of one rank of each role (WorkRecord of
// the real step on the null device) and the rates of the machine (Calibration). The times of single
// products and calls are in machine_rates.hpp. Pure.
//
//   place       (factor x products + attention + bytes x per_byte + FLOPs x per_flop) x waiting,
//               where `waiting` is the largest factor of the axes that have several ranks. A place
//               is forward or backward of one piece and micro-batch, the update, ...
//   exposed     the whole time T of a call that is waited for at once; for a call that is started,
//               with C seconds of computation to hide it: T - hidden x min(T, C). Calls of the data
//               axis are hidden by the backward (all-gathers of ZeRO-3 also by the forward) of
//               their micro-batch, the others by the weight gradient in between, a third of a
//               backward, and by nothing in a forward.
//   pipeline    the schedule, simulated with the times of the pieces and of messages
//   step        pipeline + rest of the last micro-batch + gradients + update + gather + constant;
//               the slowest of the roles that wait for each other
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/plan/machine_rates.hpp"

namespace choir {

/// The work of one rank of a role.
struct RoleWork {
  Coordinates at;
  const WorkRecord* record = nullptr;
};

/// Seconds of a step; the parts belong to the stage that computes longest.
struct StepTime {
  double seconds = 0;
  double compute = 0;                   ///< forward and backward
  double update = 0;                    ///< norm and optimizer
  double idle = 0;                      ///< waiting for other stages if messages were free
  double bubble = 0;                    ///< the idle share of the schedule, over all stages
  std::array<double, kAxes> exposed{};  ///< calls along each axis that nothing hides
  double hidden = 0;                    ///< calls that something hides
  double rest = 0;                      ///< constant
  std::string calls_most;  ///< the calls with the longest total time: "8 x all-reduce of ..."
  double exposed_seconds() const;
};

/// Predicts a step with `micro_batches` in the deck's schedule. `roles`: each combination of stage,
/// tensor and context rank, or some of every stage. Their records may have fewer micro-batches than
/// the step, but at least two if there are several.
StepTime predict_step(const Calibration& calibration, const Deck& deck, const Layout& layout,
                      int ranks_per_node, std::int64_t micro_batches,
                      const std::vector<RoleWork>& roles);

/// Formats a time: "42 ms: forward and backward 35, update 2, dp 3 exposed, idle 2".
std::string to_string(const StepTime& time);

}  // namespace choir
