#pragma once
// The training loop and its observers. Steps are queued, their results taken, and between two steps
// a run evaluates its model, saves, or stops. The observers are the watchdog with its heartbeats,
// the trace of train.profile (spans of chosen steps as a Chrome trace for chrome://tracing and
// ui.perfetto.dev, with one track per rank), and the faults of drills; a clock reports the phase of
// a step to them.

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/run/stop_request.hpp"
#include "src/train/loop/checkpointer.hpp"
#include "src/train/loop/faults.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/run_log.hpp"
#include "src/train/loop/run_watch.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {

class Trace {
 public:
  /// Keeps the spans of steps first..last, counted from 1; {0, 0} keeps none.
  Trace(std::int64_t first, std::int64_t last);

  /// These never allocate: spans beyond the reserved number are counted as lost. Local.
  void begin_step(std::int64_t step) { step_ = step; }
  void span(const char* name, double start, double end);
  std::int64_t first() const { return first_; }
  std::int64_t last() const { return last_; }
  bool recording() const { return step_ >= first_ && step_ <= last_ && last_ > 0; }
  /// True if the last step has been recorded and not yet written. A run resumed after that step
  /// never writes the trace.
  bool complete() const { return last_ > 0 && !written_ && step_ == last_; }

  /// Aligns the clocks of ranks at a barrier; the first span begins at 0. Rank 0 writes. Throws
  /// StorageError (agreed). Collective over `world`.
  void write(const std::string& path, Communicator& world);

 private:
  struct Span {
    const char* name;
    std::int64_t step;
    double start, end;
  };
  std::int64_t first_, last_, step_ = 0;
  std::vector<Span> spans_;
  std::size_t lost_ = 0;
  bool written_ = false;
};

struct Observers {
  /// Construction and destruction are collective over the world.
  Observers(const Deck& deck, Mesh& mesh, const RunDirectory& directory)
      : faults(deck, mesh.rank()),
        watch(deck, mesh, directory.path()),
        trace(profile_range(deck.train.profile).first, profile_range(deck.train.profile).last) {}

  /// From now on every phase that the clock enters belongs to the step after `progress`. Local.
  void follow(const Engine& engine, const Progress& progress);
  /// True if an observer needs the results and the weights of this step before the next one is
  /// queued.
  bool settles(std::int64_t step) const {
    return trace.first() == step + 1 || step == trace.last() || watch.weights_due(step) ||
           faults.flips_after(step);
  }
  /// Called before work of this step is queued. Local.
  void before_step(Engine& engine, std::int64_t step);
  /// Called with no step in flight. Collective.
  void after_step(Engine& engine, std::int64_t step);
  /// Writes a complete trace to a file in the run directory. Collective.
  void write_trace(const RunDirectory& directory, Communicator& world);

  Faults faults;
  RunWatch watch;
  Trace trace;
  PhaseClock clock;
};

class TrainingLoop {
 public:
  /// The parts of a run, ready for its next step.
  struct Parts {
    const Deck& deck;
    Mesh& mesh;
    Logger& log;
    const RunDirectory& directory;
    TrainingData& data;
    const std::string& contents;  ///< of the data
    const std::string& products;  ///< ProductTiming::table, used on rank 0
    const StepPlan& plan;
    Engine& engine;
    Progress& progress;  ///< of the steps whose results were taken
    Checkpointer& checkpointer;
    Observers& observers;
    Evaluation& evaluation;
    RunLog& run_log;
    StopRequest& stop;
  };
  explicit TrainingLoop(const Parts& parts);

  /// Trains to the end, or until the ranks agree to stop. Collective.
  ExitCode run();

 private:
  std::int64_t queued() const { return run_.progress.step + run_.engine.in_flight(); }
  bool settles(std::int64_t step) const;
  void queue_step();
  void take_results(int left);
  void take_result();
  void skip_or_stop(const StepResult& result);
  /// The request for which this rank leaves a phase that began at `began`, or none. A request that
  /// leaves time waits some seconds for the end of the phase. `known` was agreed before the phase.
  /// Local.
  Stop asked_to_leave(const char* phase, double began, Stop known);
  /// Evaluates after a step before whose end `stop` was asked for, and returns the request to stop
  /// that is known then. A request leaves the evaluation between two micro-batches. Collective.
  Stop evaluate(Stop stop);
  /// Runs the action with the averaged weights if eval.ema asks for them. Collective.
  void with_evaluated_weights(const std::function<void()>& action);
  /// Writes a sample; a request to stop leaves it between two tokens. Collective.
  void write_sample();
  std::string meta_json() const;
  Stop agreed_stop();
  std::exception_ptr why_lost() const;
  std::string unsaved() const;
  ExitCode finish(Stop stop);

  Parts run_;
  std::int64_t first_step_;
  Stop seen_ = Stop::none;  ///< by this rank during an evaluation or a sample
};

}  // namespace choir
