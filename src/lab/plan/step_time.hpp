#pragma once
// The times of products, attention, updates and calls by a calibration, whose rows are prepared for
// fast lookup. Pure.
//
//   product     interpolated efficiency: FLOP/s over the logarithms of m, n, k, in the grid of the
//               same form; constant beyond the border of the grid
//   attention   FLOPs / rate(length, head width), interpolated in the same way
//   call        T(S, n), interpolated over log S between the measured sizes. For a number of ranks
//               n other than the measured n0, with the ring's factor f (all-reduce 2 (n-1)/n;
//               reduce-scatter, all-gather, all-to-all (n-1)/n; message 1) and L = T(smallest, n0):
//                 T = L log2(n) / log2(n0) + (T(S, n0) - L) f(n) / f(n0)
//   group on N nodes with l ranks each, l > 1:
//                 T_reduce-scatter(S, l) + T_across(S / l, N) + T_all-gather(S, l)

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/plan/calibration.hpp"

namespace choir {

/// A value over the logarithms of `N` extents: its logarithm is multilinear between the points that
/// were added, and constant beyond the border. A corner without a point takes the value of the
/// nearest point.
template <std::size_t N>
class LogGrid {
 public:
  using Point = std::array<double, N>;
  void add(const Point& extents, double value);
  void finish();  ///< must be called before at()
  double at(const Point& extents) const;

 private:
  struct Known {
    Point at;
    double value;
  };
  double nearest(const Point& place) const;
  std::array<std::vector<double>, N> axes_;
  std::vector<Known> points_;
};

/// Sums over some work. Operations other than products and attention are kept as bytes and FLOPs.
struct PlaceTime {
  double products = 0, attention = 0;  ///< seconds
  double bytes = 0, flops = 0;
};

class MachineRates {
 public:
  /// `calibration` is borrowed.
  explicit MachineRates(const Calibration& calibration);

  // All return seconds.
  double product(const ProductWork& work) const;
  double attention(const AttentionWork& work) const;
  double update(std::string_view precision, double bytes) const;
  /// The time of a call if nothing hides it.
  double call(const CallGroup& group, const CallWork& call) const;
  /// The time of a call among the ranks of a node, or of one rank on each of several nodes.
  double call_inside(bool across, bool window, CallKind kind, int ranks, double bytes) const;

  /// See Overlap; 0 if nothing was measured.
  double hidden_share(bool across) const;
  const StreamTimes& streams(std::string_view precision) const;
  /// The largest WaitFactor of the axes along which the layout has several ranks; 1 for axes that
  /// were not measured.
  double waiting(std::string_view precision, const Layout& layout) const;
  /// The times of the work of all visits.
  PlaceTime parts(const PlaceWork& work) const;

 private:
  const Calibration& calibration_;
  std::map<std::pair<DType, int>, LogGrid<3>> products_;
  std::map<std::pair<DType, int>, LogGrid<2>> attention_;
  std::map<std::string, LogGrid<1>> updates_;
};

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
//   pipeline    the schedule, simulated with the times of the pieces and of messages; on device
//               memory also as if all messages shared one communicator
//   step        pipeline + rest of the last micro-batch + gradients + update + gather + constant;
//               the slowest of the roles that wait for each other

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
  /// `seconds` if all messages of a pipeline shared one communicator of device memory; 0 if they
  /// have no choice.
  double one_channel = 0;
  std::string calls_most;  ///< the calls with the longest total time: "8 x all-reduce of ..."
  double exposed_seconds() const;
};

/// Predicts a step with `micro_batches` in the deck's schedule. `roles`: each combination of stage,
/// tensor and context rank, or some of every stage. Their records may have fewer micro-batches than
/// the step, but at least two if there are several.
StepTime predict_step(const Calibration& calibration, const Deck& deck, const Layout& layout,
                      int ranks_per_node, std::int64_t micro_batches,
                      const std::vector<RoleWork>& roles);

/// The time of a step or a part of it, "8.4 ms" or "20.47 s", so that the parts add up.
std::string step_duration(double seconds);
/// Formats a time: "42 ms: forward and backward 35, update 2, dp 3 exposed, idle 2".
std::string to_string(const StepTime& time);

}  // namespace choir
