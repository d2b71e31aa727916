#pragma once
// The training loop and its observers. Steps are queued, their results taken, and between two steps
// a run evaluates its model, saves, or stops. The observers are the watchdog with its heartbeats,
// the trace of train.profile, and the faults of drills; a clock reports the phase of a step to
// them.

#include <exception>

#include "src/run/stop_request.hpp"
#include "src/train/loop/checkpointer.hpp"
#include "src/train/loop/faults.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/run_log.hpp"
#include "src/train/loop/run_watch.hpp"
#include "src/train/loop/trace.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {

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
  void evaluate();
  void write_sample();
  std::string meta_json() const;
  Stop agreed_stop();
  std::exception_ptr why_lost() const;
  ExitCode finish(Stop stop);

  Parts run_;
  std::int64_t first_step_;
};

}  // namespace choir
