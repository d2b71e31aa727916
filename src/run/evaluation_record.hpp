#pragma once
// The results of evaluations in all their forms: text, values by name for logs, lines of JSON, and
// the file evaluations.jsonl of the run, which `choir report` shows. No other code writes them.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "choir/run/evaluator.hpp"

namespace choir {

/// All values by name, each with `prefix` in front and the name of its set behind it:
/// "val_loss", "val_wer", "val_loss/NAME", "val_wer/NAME" ...
std::vector<std::pair<std::string, double>> values_of(const std::vector<Validation>& validations,
                                                      const std::string& prefix);
/// The same as "val_loss=1.234567 perplexity=3.4372 val_loss/NAME=... targets=100", for one line.
std::string metrics_text(const std::vector<Validation>& validations);
/// Sentences for people: those of each set and of its tags, then those of all sets together.
std::vector<std::string> lines_of(const std::vector<Validation>& validations);

/// One evaluated set of data at one checkpoint.
struct EvaluationRecord {
  std::string set;         ///< a task or a validation set; "" for all validation data
  std::string name{};      ///< of the set, also of the only one; "" for several sets or a task
  std::string kind;        ///< "choices" ... of a task; "validation"
  std::string source;      ///< the file of a task; the overrides of a validation; or ""
  std::string checkpoint;  ///< path
  std::int64_t step = 0;   ///< of the checkpoint
  std::string precision;   ///< of the arithmetic: "fp32", "bf16-mixed" ...
  /// Integers that belong to the definition of the metrics: items, window, overlap ...
  std::vector<std::pair<std::string, std::int64_t>> conditions;
  std::vector<std::pair<std::string, double>> metrics;  ///< in the order in which they are printed
  std::string time{};        ///< local time at which it was kept, as read_records() found it
  std::int64_t repeats = 0;  ///< earlier evaluations that it replaces; of read_records()
};

/// Records of kind "validation". `base`: the checkpoint and its properties.
std::vector<EvaluationRecord> records_of(const std::vector<Validation>& validations,
                                         const EvaluationRecord& base);

/// "task=facts kind=choices items=8 acc=0.625000 ...", six digits behind the point.
std::string text_of(const EvaluationRecord& record);
/// One JSON object with "event": "evaluation"; numbers in full precision, null if not finite.
std::string json_of(const EvaluationRecord& record);

/// The file in which the run of a checkpoint keeps its evaluations:
/// RUN/evaluations.jsonl for RUN/checkpoints/step_...; "" for a checkpoint outside a run directory.
std::string evaluations_file(const std::string& checkpoint);

/// Appends the records to evaluations_file() of their checkpoint. Returns "" or, if the file could
/// not be written, a message: an evaluation of a run in a read-only folder is no failure. Local.
std::string keep_records(const std::vector<EvaluationRecord>& records);

/// The samples with the most errors in the last evaluation of some data.
struct WorstSamples {
  std::int64_t step = 0;
  std::string source;  ///< overrides of the evaluation; "" for the data of the run
  std::vector<WorstSample> samples;
};
/// Replaces the lines of this source in RUN/worst_samples.jsonl, one for each sample; the file
/// keeps those of a few other sources, and is removed if it has none. Returns "" or, if the file
/// could not be written, a message. Local.
std::string keep_worst(const std::string& run, const WorstSamples& worst);
/// Reads the file that keep_worst() wrote, without lines that are damaged, by source, the newest
/// last; nothing if there is no file. Local.
std::vector<WorstSamples> read_worst(const std::string& path);

struct KeptRecords {
  /// By set and step. Evaluations of the same data with the same results, up to the rounding of
  /// another layout, are one record, with the values and the time of the last; two that measured
  /// other values are two records.
  std::vector<EvaluationRecord> records;
  std::string note;  ///< on damaged lines or an unreadable file; or ""
};
/// Reads a file that keep_records() wrote; nothing if there is none. Metrics that are no numbers
/// become NaN. Local.
KeptRecords read_records(const std::string& path);

}  // namespace choir
