#pragma once
// Monitoring of a training run: heartbeats and the watchdog, with a time-out for each kind of
// phase; slow ranks; equality of weights on all ranks.
#include <string>
#include <string_view>

#include "choir/comm/rehearsal.hpp"
#include "choir/comm/watch/watchdog.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/loop/metrics_log.hpp"
#include "choir/train/loop/rank_times.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

class RunWatch {
 public:
  /// Construction is collective over the world, destruction over the node.
  RunWatch(const Deck& deck, Mesh& mesh, const std::string& run_directory);

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
