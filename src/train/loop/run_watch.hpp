#pragma once
// Monitoring of a training run: heartbeats and the watchdog, with a time-out for each kind of
// phase; equality of weights on all ranks; and the time that each rank works on a step without
// waiting for others. The ranks of a group finish together, so only this time shows which rank is
// slow.

#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/train/loop/metrics_log.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/phase_clock.hpp"

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

/// "computing time of the ranks in a step ...: lowest tenth 80.1 ms, median 82.0 ms, highest tenth
/// 83.3 ms; slowest: rank 3 on n12 with 107 ms, 1.31 times the median; ..."
std::string to_string(const RankTimesReport& report);
/// One line of metrics.jsonl, without its line end.
std::string to_json(const RankTimesReport& report, std::int64_t step);

class RunWatch {
 public:
  /// Construction is collective over the world, destruction over the node.
  RunWatch(const Deck& deck, Mesh& mesh, const std::string& run_directory);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  Watchdog& dog() { return dog_; }
  // A phase begins, with the time-out of its kind. Local.
  void start(std::string_view phase) {
    rehearse(phase);
    dog_.beat(phase, deck_.start);
  }
  void evaluation(std::string_view phase) {
    rehearse("evaluation");
    dog_.beat(phase, deck_.evaluation);
  }
  /// A part of an evaluation is done, so that its time-out begins anew. Local.
  void evaluates(std::string_view phase) { dog_.beat(phase, deck_.evaluation); }
  void save(std::string_view phase) {
    rehearse("save");
    dog_.beat(phase, deck_.save);
  }
  /// `doing` belongs to a step before which this process has begun `begun` steps.
  void step(std::string_view doing, std::int64_t begun);
  void rest() {
    rehearse("report");
    dog_.rest();
  }

  /// Called with PhaseClock::begin(). Local.
  void begin_phases() { times_.begin(); }
  /// PhaseClock::Listener. Local.
  void span(Phase ended, double start, double end) { times_.span(ended, start, end); }
  void end_step() { times_.end_step(); }
  /// True if weights are compared after this step.
  bool weights_due(std::int64_t step) const {
    return deck_.weights > 0 && step % deck_.weights == 0;
  }
  /// Compares weights if due. Collective.
  void after_step(Engine& engine, std::int64_t step);
  /// Reports slow ranks if due; called when a line is logged. Collective.
  void report_ranks(Mesh& mesh, std::int64_t step, Logger& log, MetricsFile& metrics);
  /// Times of this rank over all steps so far. Local.
  RankTimes::Own own_time() const { return times_.whole_run(); }

 private:
  void rehearse(std::string_view phase) {
    if (rehearsal_ != nullptr) rehearsal_->enter(phase);
  }

  WatchSection deck_;
  double usual_;
  HeartbeatBoard board_;
  Watchdog dog_;
  RankTimes times_;
  bool first_step_ = true;
  Rehearsal* rehearsal_;  ///< nullptr: the ranks are real
};

}  // namespace choir
