#pragma once
// A training run from its deck to its exit code: the room where data, model, optimizer,
// communication and checkpoints meet.
#include <memory>
#include <optional>
#include <string>

#include "choir/train/engine/training_data.hpp"
#include "choir/train/engine/workplace.hpp"
#include "choir/train/log/metrics_log.hpp"
#include "choir/train/log/run_directory.hpp"
#include "choir/train/log/tensorboard_file.hpp"
#include "choir/train/log/trace.hpp"
#include "choir/train/save/checkpointer.hpp"
#include "choir/train/step_planner.hpp"
#include "choir/train/watch/run_watch.hpp"
#include "choir/train/watch/stop_request.hpp"

namespace choir {

class Trainer {
 public:
  /// Collective. Opens the data, plans memory, reports, builds the model, resumes. `started`:
  /// now_seconds() when the program began. Throws what is wrong, agreed by all ranks.
  Trainer(Deck deck, const Workplace& place, Logger& log, double started);

  /// Collective. Trains to the end or to an agreed stop.
  ExitCode run();

 private:
  // Setting up, in this order.
  void open_run();
  void build();
  void resume();

  // One step and what may follow it. Steps are queued; progress_ knows of those whose results were
  // taken.
  void queue_step();
  bool settles(std::int64_t step) const;
  void take_results(int left);
  void take_result();
  void skip_or_stop(const StepResult& result);
  void log_step();
  void say_progress();
  void evaluate();
  void write_sample();
  void save();
  Stop agreed_stop();
  ExitCode finish(Stop stop);
  std::string summary() const;
  std::string meta_json() const;
  bool due(std::int64_t interval) const { return due(interval, progress_.step); }
  static bool due(std::int64_t interval, std::int64_t step) {
    return interval > 0 && step % interval == 0;
  }
  std::int64_t queued() const { return progress_.step + engine_->in_flight(); }

  Deck deck_;
  Mesh& mesh_;
  Device& device_;
  std::string device_reason_;
  Logger& log_;
  double started_;
  RunDirectory directory_;
  Faults faults_;
  BatchSizes batch_;
  std::unique_ptr<TrainingData> data_;
  StepPlan plan_;
  std::unique_ptr<Engine> engine_;
  Progress progress_;
  std::unique_ptr<Checkpointer> checkpointer_;
  StopRequest stop_;
  RunWatch watch_;
  MetricsFile metrics_file_;
  TensorboardFile tensorboard_;
  ProgressLine progress_line_;
  PhaseClock clock_;
  Trace trace_;
  double peak_flops_ = 0;             // of all ranks
  std::int64_t resident_before_ = 0;  // of this process, before the model

  StepResult last_;
  PhaseTotals since_log_, all_steps_;
  StepContent content_since_log_, all_content_;
  double loss_since_evaluation_ = 0;
  std::int64_t steps_since_evaluation_ = 0;
  std::optional<double> train_loss_, val_loss_;  // measured at the current step
  std::vector<Validation> validations_;          // likewise
  double last_val_loss_ = 0;
  double evaluation_seconds_ = 0, slowest_evaluation_ = 0;
  std::int64_t first_step_ = 0;
  bool first_line_ = true;
  bool best_ = false;  // the validation loss of this step is the lowest so far
};

}  // namespace choir
