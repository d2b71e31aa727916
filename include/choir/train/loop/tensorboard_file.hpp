#pragma once
// The numbers of the log lines as TensorBoard reads them. A file is a sequence of records: length
// (8 bytes, little-endian), masked CRC-32C of these, payload, masked CRC-32C of it (TensorFlow's
// record format). A payload is an Event in protocol buffer encoding, written here by hand.
// Source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/
// summary.proto.
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "choir/train/loop/metrics_log.hpp"

namespace choir {

namespace tensorboard {

/// The record that carries `payload`.
std::string record(std::string_view payload);

/// Events; `wall_time` in seconds since 1970. The first of every file:
std::string version_event(double wall_time);
/// "From here on `step` and later count anew": what a resumed run repeats replaces what was there.
std::string start_event(double wall_time, std::int64_t step);
/// Tags and their values.
std::string scalars_event(double wall_time, std::int64_t step,
                          std::span<const std::pair<std::string, double>> scalars);

/// "val/wer/NAME", "speed/tokens_per_second" ... of a log line.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& metrics);

}  // namespace tensorboard

/// Local; rank 0 owns one. A resumed run begins a file of its own, behind those that are there.
class TensorboardFile {
 public:
  TensorboardFile() = default;
  /// Makes `folder`/events.out.tfevents.<time>.<host>. `first_step`: the next to be written.
  /// StorageError.
  TensorboardFile(const std::string& folder, std::int64_t first_step);
  /// A full disk must not end training: false when the event could not be written.
  bool write(const StepMetrics& metrics);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
  std::streamoff good_ = 0;  // bytes of whole records
};

}  // namespace choir
