#pragma once
// The time that each rank works on a step without waiting for others. The ranks of a group finish
// together, so only this shows which rank is slow.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

/// The own times of all ranks over some steps; equal on every rank.
struct RankTimesReport {
  std::int64_t steps = 0;
  double p10 = 0, p50 = 0, p90 = 0, slowest = 0;  ///< seconds per step
  double outside = 0;  ///< of the slowest rank: time outside forward and backward
  int slowest_rank = 0;
  std::string slowest_host;
  bool steady = false;  ///< the same rank was slow in the last kSteady reports
};

class RankTimes {
 public:
  /// A rank above kSlow times the median is slow, and steadily slow after kSteady such reports.
  static constexpr double kSlow = 1.2;
  static constexpr int kSteady = 3;

  /// Called with PhaseClock::begin(): phases follow from now on. Communication at the start or
  /// between two steps is not counted. Local.
  void begin();
  /// PhaseClock::Listener: `ended` lasted from `start` to `end`. Time of this thread inside
  /// communicators is excluded. Spans that a device measured itself are counted whole: they include
  /// collectives inside a computation (tensor parallelism); the communication phase is not counted.
  /// Local.
  void span(Phase ended, double start, double end);
  /// Ends a step. Local.
  void end_step();
  std::int64_t steps() const { return steps_; }
  /// Reports and restarts the measurement. Collective over the world.
  RankTimesReport report(Mesh& mesh);
  /// The times of all ranks in the last report. Local.
  const std::vector<double>& seconds() const { return all_; }

  /// Seconds per step of one rank: all of its own time, and the part outside forward and backward.
  struct Own {
    double all = 0, outside = 0;
    double deviation = 0;  ///< standard deviation of `all` over the steps
  };
  /// Means over all steps so far, without the first (warm-up) step if there are more. Local.
  Own whole_run() const;

 private:
  struct Seconds {
    double all = 0, outside = 0;
  };
  Seconds now_;         // since the last report
  Seconds step_;        // of the step under way
  Seconds first_;       // of the first step
  Seconds rest_;        // of the other steps
  double squares_ = 0;  // sum of the squares of their `all`
  double inside_ = 0;
  std::int64_t steps_ = 0, all_steps_ = 0;
  std::vector<double> all_;
  int suspect_ = -1, in_a_row_ = 0;
};

/// Percentile (0..1) of values, with linear interpolation (type 7 of Hyndman and Fan 1996).
double percentile(std::vector<double> values, double part);

/// "own time per rank and step: p10 80.1 ms, p50 82.0 ms, p90 83.3 ms; slowest: rank 3 on n12,
/// 1.31 times the median"
std::string to_string(const RankTimesReport& report);
/// One line of metrics.jsonl, without its line end.
std::string to_json(const RankTimesReport& report, std::int64_t step);

}  // namespace choir
