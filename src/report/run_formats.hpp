#pragma once
// Conversions of a run to the formats of other programs: an offline run of Weights & Biases, the
// events of TensorBoard, the log lines of MLPerf, and one row for dashboards that compare systems.
// All jobs of a chain count as one run. Pure.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/report/run_record.hpp"

namespace choir::report {

/// Seconds since 1970 of a local time, "2026-11-20 17:03:59"; none if it is no time.
std::optional<double> seconds_of(const std::string& time);

/// The time at which each step was done: the start of its job plus the seconds of the steps since.
class StepTimes {
 public:
  /// `run` must outlive this.
  explicit StepTimes(const ReportedRun& run);

  /// The start of the first job, in seconds since 1970; none if it is unknown.
  std::optional<double> first() const;
  /// Seconds since 1970, or since the first job if its start is unknown. Steps must be requested
  /// in ascending order.
  double at(double step);

 private:
  const Curve& dt_;
  std::vector<std::pair<std::int64_t, double>> jobs_;
  std::size_t job_ = 0, line_ = 0;
  double now_ = 0, before_ = 0;
};

struct WandbRun {
  std::string folder;  ///< "offline-run-20261124_120000-ID", with the start of the first job
  std::string file;    ///< "run-ID.wandb", the file in the folder
  std::string bytes;   ///< content of the file
};

/// Converts a run. Each line of metrics becomes a step of the history, at its StepTimes; the deck
/// becomes the configuration, section by section; the last value of every curve becomes the
/// summary. The same run always has the same ID, so that a longer one replaces it. Source of the
/// format: wandb's wandb_internal.proto and datastore.py.
WandbRun wandb_run(const ReportedRun& run);

/// Converts a run to one file of events of TensorBoard, with the tags of a file that
/// log.tensorboard writes during training. Each line of metrics has the time of its step.
std::string tensorboard_events(const ReportedRun& run);

/// The events of a training in the format of MLPerf ("MLLOG"), one per line. `values` replace or
/// add values of keys, such as submission_org. A block is the training between two evaluations;
/// samples are sequences, and utterances of speech. Throws DataError if the run has no step or no
/// validation loss, because MLPerf knows no training without them. Source of the format and of the
/// keys: mlcommons/logging, compliance_checker, training_6.1.0.
std::string mllog_lines(const ReportedRun& run, const std::map<std::string, std::string>& values);
/// The assumptions and gaps of mllog_lines(), a sentence each, with the setting that replaces it.
std::vector<std::string> mllog_notes(const ReportedRun& run,
                                     const std::map<std::string, std::string>& values);

/// One JSON object: the system, its scale, speed and energy, the result, and the provenance. What
/// was not measured is null. Throws DataError if the run has no step.
std::string scale_row(const ReportedRun& run);

}  // namespace choir::report
