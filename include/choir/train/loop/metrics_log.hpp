#pragma once
// The log line in the format of the ALCF tutorial, and metrics.jsonl: the same names in both, with
// full precision in the latter.
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "choir/train/step/engine.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

/// One logged step; times are means over the steps since the previous line.
struct StepMetrics {
  std::int64_t step = 0;  ///< from 1
  StepResult result;
  /// The terms of this step's loss if it has several: see means_by_name().
  std::vector<std::pair<std::string, double>> terms;
  double dt = 0;  ///< seconds per step, all phases
  double forward = 0, backward = 0, data = 0, comm = 0, optimizer = 0, other = 0;
  double sequences = 0;        ///< of the global batch
  double tokens = 0;           ///< number of unmasked targets
  double audio_seconds = 0;    ///< of speech data
  double mfu = 0;              ///< fraction of `peak_flops` of all ranks; 0: peak unknown
  std::int64_t memory = 0;     ///< resident bytes of this rank, the whole process
  std::int64_t allocated = 0;  ///< the part that the memory plan counts on the device, at its peak
  std::optional<double> train_loss, val_loss;  ///< of the evaluation at this step
  std::vector<Validation> validations;         ///< all validation results
  bool scaled = false;                         ///< the line shows result.loss_scale
};

/// "step=10 loss=3.154 dt=..." with the keys in the order of the legend.
std::string format_line(const StepMetrics& metrics, int ranks);
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
  /// Returns false if the line could not be written: a full disk must not end training.
  bool write(const std::string& line);

 private:
  std::ofstream file_;
};

}  // namespace choir
