#pragma once
// What a run says of itself while it trains: the lines of its log, metrics.jsonl, TensorBoard, the
// progress line of a terminal, and the summary at its end.
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "choir/train/loop/checkpointer.hpp"
#include "choir/train/loop/metrics_log.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/loop/run_watch.hpp"
#include "choir/train/loop/tensorboard_file.hpp"
#include "src/train/loop/diagnosis.hpp"
#include "src/train/loop/evaluation.hpp"

namespace choir {

class RunLog {
 public:
  /// `started`: now_seconds() when the program began. Everything referred to must outlive this.
  RunLog(const Deck& deck, Mesh& mesh, const RunDirectory& directory, Logger& log, double started);

  /// Local, on rank 0: opens the files for a run that stands after `step`.
  void open_files(std::int64_t step);
  /// Local. One object for metrics.jsonl; a disk that is full does not end training.
  void record(const std::string& json);
  /// Local. FLOP/s of all ranks, for the MFU. `again`, collective over the world, measures them
  /// once more when a step exceeds them, as it does when other work had the cores; empty: they are
  /// known.
  void set_peak(double flops, std::function<double()> again) {
    peak_flops_ = flops;
    measure_again_ = std::move(again);
  }
  /// Collective over the world. Steps begin after `step`: time runs for the progress line.
  void start_training(std::int64_t step);

  /// Local. One step is done.
  void add(const StepResult& result, const StepContent& content, const PhaseClock& step);
  /// Whether there is a line after this step: the first of this process, at the deck's interval,
  /// and the last.
  bool due(std::int64_t step) const;
  /// Collective over the world.
  void write_line(std::int64_t step, TrainingData& data, const Engine& engine,
                  const Evaluation& evaluation, RunWatch& watch);
  /// Local; on a terminal, and now and then.
  void say_progress(std::int64_t step);
  /// Seconds a step, of all so far.
  double mean_step() const { return all_steps_.mean(); }

  /// Collective over the world. `own`: of this rank.
  std::string summary(const Progress& progress, Engine& engine, std::size_t planned_arena,
                      const Checkpointer& checkpointer, const Evaluation& evaluation,
                      const TrainingData& data, RankTimes::Own own);

 private:
  /// Collective over the world.
  double mfu(double flops_per_second);
  /// Collective over the world: says so where steps became slow and cores are short.
  void report_cores(double dt);
  RunTimes times_of_ranks(RankTimes::Own own, double between_steps);

  const Deck& deck_;
  Mesh& mesh_;
  const RunDirectory& directory_;
  Logger& log_;
  double started_;
  MetricsFile metrics_file_;
  TensorboardFile tensorboard_;
  ProgressLine progress_line_;
  double peak_flops_ = 0;
  std::function<double()> measure_again_;
  StepResult last_;
  PhaseTotals since_line_, all_steps_;
  StepContent content_since_line_, all_content_;
  double ready_ = 0;             // now_seconds() when steps began
  std::int64_t first_step_ = 0;  // the step that this process began after
  std::int64_t lost_lines_ = 0;  // of metrics.jsonl, that could not be written
  bool first_line_ = true;
  std::vector<std::string> hosts_;  // of each rank; names on rank 0
  std::optional<CoreWatch> cores_, cores_since_line_;
  double fastest_ = 0;        // mean step of the fastest line so far
  double cores_said_ = -1e9;  // now_seconds() when cores were last said to be short
};

}  // namespace choir
