#pragma once
// The time of a step, predicted: the one place where the model of it stands. From what a rank of
// each role does (WorkRecord, of the real step on the null device) and what the machine does
// (Calibration); what single products and calls take is in machine_rates.hpp. Pure.
//
//   place       (factor x products + attention + bytes x per_byte + FLOPs x per_flop) x waiting,
//   the
//               largest of the axes that have several ranks; a place is forward or backward of one
//               piece and micro-batch, the update, ...
//   exposed     all of a call that is waited for at once; of one that is started, with C seconds of
//               computation to hide it: T - hidden x min(T, C). Calls of the data axis have the
//               backward (all-gathers of ZeRO-3 also the forward) of their micro-batch, the others
//               the weight gradient that stands between, a third of a backward, and nothing in
//               a forward.
//   pipeline    the schedule, simulated with the times of the pieces and of messages
//   step        pipeline + rest of the last micro-batch + gradients + update + gather + constant;
//               of roles that wait for each other the slowest
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "choir/device/work_journal.hpp"
#include "choir/lab/plan/machine_rates.hpp"

namespace choir {

/// What one rank of a role does.
struct RoleWork {
  Coordinates at;
  const WorkRecord* record = nullptr;
};

/// Seconds of a step; its parts are those of the stage that computes longest.
struct StepTime {
  double seconds = 0;
  double compute = 0;                   ///< forward and backward
  double update = 0;                    ///< norm and optimizer
  double idle = 0;                      ///< waiting for other stages, were messages free
  double bubble = 0;                    ///< the share of that in the schedule, over all stages
  std::array<double, kAxes> exposed{};  ///< calls along each axis that nothing hides
  double hidden = 0;                    ///< calls that something hides
  double rest = 0;                      ///< constant
  std::string calls_most;               ///< those that take longest in all: "8 x all-reduce of ..."
  double exposed_seconds() const;
};

/// The step has `micro_batches` in the deck's schedule. `roles`: each combination of stage, tensor
/// and context rank, or some of every stage; records may be of fewer micro-batches than there are,
/// two at least if there are several.
StepTime predict_step(const Calibration& calibration, const Deck& deck, const Layout& layout,
                      int ranks_per_node, std::int64_t micro_batches,
                      const std::vector<RoleWork>& roles);

/// "42 ms: forward and backward 35, update 2, dp 3 exposed, idle 2".
std::string to_string(const StepTime& time);

}  // namespace choir
