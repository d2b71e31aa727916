#pragma once
// How long each rank works on a step, without what it waits for others: the ranks of a group finish
// together, so only this shows who is slow.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

/// The own time of all ranks in some steps; equal on every rank.
struct RankTimesReport {
  std::int64_t steps = 0;
  double p10 = 0, p50 = 0, p90 = 0, slowest = 0;  ///< seconds a step
  double outside = 0;  ///< of the slowest rank's, outside forward and backward
  int slowest_rank = 0;
  std::string slowest_host;
  bool steady = false;  ///< the same rank was far behind kSteady reports in a row
};

class RankTimes {
 public:
  /// A rank above so many times the median is slow, and steadily so after that many reports.
  static constexpr double kSlow = 1.2;
  static constexpr int kSteady = 3;

  /// Local: phases follow from now on, as PhaseClock::begin(). What was communicated before, at the
  /// start or between two steps, is none of theirs.
  void begin();
  /// Local, as PhaseClock::Listener: `ended` took from `start` to `end`. Time that this thread
  /// spent inside communicators meanwhile is left out. What a device measured by itself is taken
  /// whole: collectives inside a computation (tensor parallelism) count there; the phase of
  /// communication does not count.
  void span(Phase ended, double start, double end);
  /// Local: a step is over.
  void end_step();
  std::int64_t steps() const { return steps_; }
  /// Collective over the world. Begins anew.
  RankTimesReport report(Mesh& mesh);
  /// Local, the numbers of all ranks of the last report.
  const std::vector<double>& seconds() const { return all_; }

  /// Seconds a step of one rank: all of its own time, and the part outside forward and backward.
  struct Own {
    double all = 0, outside = 0;
    double deviation = 0;  ///< of `all` from step to step: the standard deviation
  };
  /// Local. In all steps so far but for the first, which warms up, where there are more.
  Own whole_run() const;

 private:
  struct Seconds {
    double all = 0, outside = 0;
  };
  Seconds now_;         // since the last report
  Seconds step_;        // of the step under way
  Seconds first_;       // of the first step
  Seconds rest_;        // of the others
  double squares_ = 0;  // of their `all`
  double inside_ = 0;
  std::int64_t steps_ = 0, all_steps_ = 0;
  std::vector<double> all_;
  int suspect_ = -1, in_a_row_ = 0;
};

/// Percentile (0..1) of values, linearly between neighbours (type 7 of Hyndman and Fan 1996).
double percentile(std::vector<double> values, double part);

/// "own time per rank and step: p10 80.1 ms, p50 82.0 ms, p90 83.3 ms; slowest: rank 3 on n12,
/// 1.31 times the median"
std::string to_string(const RankTimesReport& report);
/// One line of metrics.jsonl, without its end.
std::string to_json(const RankTimesReport& report, std::int64_t step);

}  // namespace choir
