#pragma once
// What watches a training run while it runs: heartbeats and the watchdog, each phase with its own
// time-out; which rank is slow; whether weights are still the same on all ranks.
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
  /// Collective over the world to create, over the node to destroy.
  RunWatch(const Deck& deck, Mesh& mesh, const std::string& run_directory);

  Watchdog& dog() { return dog_; }
  // Local: the phase begins, with the time-out of its kind.
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
  /// `doing` is of the step that `begun` more steps of this process came before.
  void step(std::string_view doing, std::int64_t begun);
  void rest() {
    rehearse("report");
    dog_.rest();
  }

  /// Local, with PhaseClock::begin().
  void begin_phases() { times_.begin(); }
  /// Local, as PhaseClock::Listener.
  void span(Phase ended, double start, double end) { times_.span(ended, start, end); }
  void end_step() { times_.end_step(); }
  /// Whether weights are compared after this step.
  bool weights_due(std::int64_t step) const {
    return deck_.weights > 0 && step % deck_.weights == 0;
  }
  /// Collective: compares weights when due.
  void after_step(Engine& engine, std::int64_t step);
  /// Collective, where a line is logged: who is slow, when that is due.
  void report_ranks(Mesh& mesh, std::int64_t step, Logger& log, MetricsFile& metrics);
  /// Local: this rank's, of all steps so far.
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
