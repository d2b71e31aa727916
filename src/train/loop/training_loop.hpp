#pragma once
// The training loop: steps are queued, their results taken, and between two steps a run evaluates
// its model, saves, or stops.
#include <exception>

#include "choir/train/loop/checkpointer.hpp"
#include "choir/train/loop/stop_request.hpp"
#include "src/train/loop/observers.hpp"
#include "src/train/loop/run_log.hpp"

namespace choir {

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
