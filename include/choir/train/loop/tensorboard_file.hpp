#pragma once
// The numbers of the log lines as TensorBoard events. A file is a sequence of records in
// TensorFlow's record format: length (8 bytes, little-endian), masked CRC-32C of the length,
// payload, masked CRC-32C of the payload. A payload is an Event in protocol buffer encoding, which
// is encoded here by hand. Source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
// core/framework/summary.proto.
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "choir/train/loop/metrics_log.hpp"

namespace choir {

namespace tensorboard {

/// The record with this payload.
std::string record(std::string_view payload);

/// The first event of every file; `wall_time` in seconds since 1970.
std::string version_event(double wall_time);
/// An event after which events from `step` on replace earlier ones, because a resumed run repeats
/// them.
std::string start_event(double wall_time, std::int64_t step);
/// An event with tags and their values.
std::string scalars_event(double wall_time, std::int64_t step,
                          std::span<const std::pair<std::string, double>> scalars);

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

}  // namespace choir
