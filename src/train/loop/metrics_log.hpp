#pragma once
// The numbers of the log lines in four forms: the log line in the format of the ALCF tutorial,
// metrics.jsonl with the same names and full precision, TensorBoard events, and a file for
// Prometheus.

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "choir/run/training_data.hpp"
#include "src/core/protobuf.hpp"

namespace choir {

/// One logged step; times are means over the steps since the previous line.
struct StepMetrics {
  std::int64_t step = 0;  ///< from 1
  StepResult result;
  /// The terms of this step's loss if it has several: see means_by_name().
  std::vector<std::pair<std::string, double>> terms;
  double dt = 0;  ///< seconds per step, all phases
  double forward = 0, backward = 0, data = 0, comm = 0, optimizer = 0, other = 0;
  double sequences = 0;      ///< of the global batch
  double tokens = 0;         ///< number of unmasked targets
  double audio_seconds = 0;  ///< of speech data
  double mfu = 0;            ///< fraction of `peak_flops` of all ranks; 0: peak unknown
  /// Joules of all devices per step and, since training began, of everything; unknown where their
  /// counters cannot be read.
  std::optional<double> energy, total_energy;
  std::int64_t memory = 0;     ///< resident bytes of this rank, the whole process
  std::int64_t allocated = 0;  ///< the part that the memory plan counts on the device, at its peak
  std::optional<double> train_loss, val_loss;  ///< of the evaluation at this step
  std::vector<Validation> validations;         ///< all validation results
  bool scaled = false;                         ///< the line shows result.loss_scale

  /// Joules per target.
  double energy_of_token() const { return tokens > 0 ? *energy / tokens : 0; }
};

/// "step=10 loss=3.154 dt=..." with the keys in the order of the legend.
std::string format_line(const StepMetrics& metrics, int ranks);
/// The fields of such a line that fit into `columns` characters, in their order; the least
/// important ones are left out first. The step and the loss always stay.
std::string fitting_line(const std::string& line, std::size_t columns);
/// The lines that nanoGPT prints: "step N: train loss X, val loss X" after an evaluation, and
/// "iter N: loss X, time Xms, mfu X%"; speech has ", X x real time" behind it.
std::string compact_lines(const StepMetrics& metrics);
/// The meaning of each key, one line per key.
std::string metrics_legend(const std::string& peak_text);
/// One JSON object.
std::string to_json(const StepMetrics& metrics, int ranks);

/// Appends objects to a file, flushed line by line. Local; rank 0 owns one.
class MetricsFile {
 public:
  MetricsFile() = default;
  /// Drops lines of steps beyond `last_step`, which a resumed run repeats. Throws StorageError.
  MetricsFile(const std::string& path, std::int64_t last_step);
  /// The last step whose line was dropped; 0 for none.
  std::int64_t last_dropped() const { return last_dropped_; }
  /// Returns false if the line could not be written: a full disk must not end training.
  bool write(const std::string& line);

 private:
  std::ofstream file_;
  std::int64_t last_dropped_ = 0;
};

namespace tensorboard {

/// Seconds since 1970.
double wall_time();

/// Tags of a log line: "val/wer/NAME", "speed/tokens_per_second" ...
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& metrics);

}  // namespace tensorboard

/// Local; rank 0 owns one. A resumed run creates a new file after the existing ones.
class TensorboardFile {
 public:
  TensorboardFile() = default;
  /// Creates `folder`/events.out.tfevents.<time>.<host>. `first_step` is the next step to be
  /// written. Throws StorageError.
  TensorboardFile(const std::string& folder, std::int64_t first_step);
  /// Returns false if the event could not be written: a full disk must not end training.
  bool write(const StepMetrics& metrics);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
  std::streamoff good_ = 0;  // bytes of complete records
};

/// The scalars of TensorBoard as gauges with the label `run`, "choir_train_loss" for "train/loss";
/// those of a named validation set have the label `set` too. `now` in seconds since 1970.
std::string prometheus_text(const StepMetrics& metrics, const std::string& run, double now);

/// Holds the numbers of the last log line. Local; rank 0 owns one.
class PrometheusFile {
 public:
  PrometheusFile() = default;
  /// Throws StorageError if `path` cannot be written.
  PrometheusFile(std::string path, std::string run);
  /// Replaces the file at once, so that no reader sees half of it. Returns false if it could not be
  /// written: a full disk must not end training.
  bool write(const StepMetrics& metrics);
  const std::string& path() const { return path_; }

 private:
  std::string fresh() const { return path_ + ".new"; }
  std::string path_, run_;
};

}  // namespace choir
