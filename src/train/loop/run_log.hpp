#pragma once
// The output of a run during training: evaluations (the loss on validation data, whether it is the
// lowest so far, and samples of the model's output), log lines, metrics.jsonl, TensorBoard, the
// progress line of a terminal, and the summary at the end.

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/run/training_data.hpp"
#include "src/run/energy_meter.hpp"
#include "src/run/stored_model.hpp"
#include "src/train/loop/checkpointer.hpp"
#include "src/train/loop/diagnosis.hpp"
#include "src/train/loop/metrics_log.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/run_watch.hpp"

namespace choir {

class Evaluation {
 public:
  /// All arguments must outlive this.
  Evaluation(const Deck& deck, TrainingData& data, ModelInstance& instance,
             const RunDirectory& directory, Logger& log)
      : deck_(deck), data_(data), instance_(instance), directory_(directory), log_(log) {}

  /// Forgets the measurements of the previous step. Local.
  void begin_step();
  /// Adds the result of a finished step; the mean loss of these steps is reported with the next
  /// validation loss. Local.
  void add(const StepResult& result);
  /// True if there is an evaluation after this step: at the deck's interval and after the last
  /// step.
  bool due(std::int64_t step) const;
  /// Measures the validation loss if there is validation data. `between` is called before every
  /// micro-batch, by all ranks at the same one; an exception that all of them throw there leaves
  /// the evaluation without a result. Collective over the mesh.
  void measure(Progress& progress, const std::function<void()>& between);
  /// Writes a sample, or the examples of the last evaluation, to the log and to the run directory.
  /// `between` is called after every token by the ranks that generate; an exception that all of
  /// them throw there leaves the sample unwritten. Collective over the mesh.
  void sample(std::int64_t step, const std::function<void()>& between);

  /// Measurements of the current step.
  const std::optional<double>& val_loss() const { return val_loss_; }
  const std::optional<double>& train_loss() const { return train_loss_; }
  const std::vector<Validation>& validations() const { return validations_; }
  /// True if the validation loss of this step is the lowest so far and the deck keeps the best
  /// checkpoint.
  bool best() const { return best_; }
  /// The last measured validation loss; 0 before the first.
  double last_val_loss() const { return last_val_loss_; }
  double seconds() const { return seconds_; }
  double slowest() const { return slowest_; }
  /// The number of evaluations after this step, to the end of the run. Local.
  std::int64_t due_after(std::int64_t step) const;
  /// Mean seconds of an evaluation with its sample; 0 before the first.
  double mean() const {
    return measurements_ > 0 ? measured_ / static_cast<double>(measurements_) : 0;
  }

 private:
  void keep_worst(std::int64_t step, const std::vector<WorstSample>& samples);

  const Deck& deck_;
  TrainingData& data_;
  ModelInstance& instance_;
  const RunDirectory& directory_;
  Logger& log_;
  std::optional<double> train_loss_, val_loss_;
  std::vector<Validation> validations_;
  std::string examples_;  // of the last evaluation
  bool best_ = false;
  double loss_since_ = 0;  // sum over the steps since the last evaluation
  std::int64_t steps_since_ = 0;
  double last_val_loss_ = 0, seconds_ = 0, slowest_ = 0, measured_ = 0;
  std::int64_t measurements_ = 0;
};

/// The time that the rest of a run will take. Steps are predicted by the median of recent ones:
/// neither the first steps, which are slower, nor a stall changes the prediction for long.
class TimeLeft {
 public:
  void add_step(double seconds);
  /// Seconds of a step; 0 before enough steps were timed.
  double of_step() const;
  /// Seconds of this many steps and evaluations of `evaluation` seconds; 0 if those of a step are
  /// not known.
  double of(std::int64_t steps, std::int64_t evaluations, double evaluation) const;

 private:
  static constexpr std::int64_t kSlower = 5, kEnough = 10, kRecent = 100;  // steps
  std::int64_t timed_ = -kSlower;
  std::array<double, kRecent> recent_{};  // a ring
};

class RunLog {
 public:
  /// `started` is now_seconds() at the start of the program. All arguments must outlive this.
  RunLog(const Deck& deck, Mesh& mesh, const RunDirectory& directory, Logger& log, double started);

  /// Opens the files of a run that has done `step` steps. Local, on rank 0.
  void open_files(std::int64_t step);
  /// Writes one object to metrics.jsonl; a full disk does not end training. Local.
  void record(const std::string& json);
  /// Sets the FLOP/s of all ranks, for the MFU. `again` (collective over the world) measures them
  /// once more if a step exceeds them, which happens if other work had used the cores; empty if
  /// they are known. Local.
  void set_peak(double flops, std::function<double()> again) {
    peak_flops_ = flops;
    measure_again_ = std::move(again);
  }
  /// Starts the clock of the progress line and the meter of energy; steps begin after `step`.
  /// Collective over the world.
  void start_training(std::int64_t step, const Device& device);
  /// Energy from end_steps() until begin_steps() is not that of steps. Call them with no step in
  /// flight. Local.
  void end_steps() { energy_->end_steps(); }
  void begin_steps() { energy_->begin_steps(); }

  /// Adds a finished step. Local.
  void add(const StepResult& result, const StepContent& content, const PhaseClock& step);
  /// True if there is a line after this step: the first of this process, at the deck's interval,
  /// and the last.
  bool due(std::int64_t step) const;
  /// Collective over the world.
  void write_line(std::int64_t step, TrainingData& data, const Engine& engine,
                  const Evaluation& evaluation, RunWatch& watch);
  /// Shows progress on a terminal, and now and then in a log. Local.
  void say_progress(std::int64_t step, const Evaluation& evaluation);
  /// Mean seconds per step over all steps so far.
  double mean_step() const { return all_steps_.mean(); }

  /// Collective over the world. `own` is the time of this rank.
  std::string summary(const Progress& progress, Engine& engine, std::size_t planned_arena,
                      const Checkpointer& checkpointer, const Evaluation& evaluation,
                      const TrainingData& data, RankTimes::Own own);

 private:
  /// In a log, which has no live line: says after a few steps, and again after the first
  /// evaluation, how long the rest takes. Local.
  void say_time_left(std::int64_t step, const Evaluation& evaluation);
  double seconds_left(std::int64_t step, const Evaluation& evaluation) const;
  /// Collective over the world.
  double mfu(double flops_per_second);
  /// Warns if steps became slow and cores are short. Collective over the world.
  /// Prints the line in the style of the deck, and writes the whole line to log.txt.
  void print_line(const StepMetrics& metrics);
  void report_cores(double dt);
  /// Sets the energy of a line of this many steps. Collective over the world.
  void measure_energy(StepMetrics& metrics, double steps);
  /// The line of the summary; "" if energy is not known. Collective over the world.
  std::string energy_text();
  RunTimes times_of_ranks(RankTimes::Own own, double between_steps);

  const Deck& deck_;
  Mesh& mesh_;
  const RunDirectory& directory_;
  Logger& log_;
  double started_;
  MetricsFile metrics_file_;
  TensorboardFile tensorboard_;
  PrometheusFile prometheus_;
  double progress_said_ = 0;  // now_seconds() of the last progress line
  double peak_flops_ = 0;
  std::function<double()> measure_again_;
  StepResult last_;
  PhaseTotals since_line_, all_steps_;
  std::vector<double> line_rates_;  // the summary has their median
  StepContent content_since_line_, all_content_;
  double ready_ = 0;             // now_seconds() when steps began
  std::int64_t first_step_ = 0;  // this process began after this step
  std::int64_t lost_lines_ = 0;  // lines of metrics.jsonl that could not be written
  bool first_line_ = true;
  TimeLeft time_left_;
  bool said_time_left_ = false, said_with_evaluations_ = false;
  std::vector<std::string> hosts_;    // host of each rank; names only on rank 0
  std::vector<std::string> crowded_;  // see busy_cores(); only on rank 0
  std::optional<CoreWatch> cores_, cores_since_line_;
  std::optional<EnergyMeter> energy_;
  double energy_before_line_ = 0;  // joules of steps
  double fastest_ = 0;             // mean step of the fastest line so far
  double cores_said_ = -1e9;       // now_seconds() of the last warning about cores
};

}  // namespace choir
