#include "choir/train/loop/tensorboard_file.hpp"

#include <bit>
#include <chrono>
#include <filesystem>

#include "choir/core/crc32c.hpp"
#include "choir/core/error.hpp"
#include "choir/core/process.hpp"
#include "choir/core/protobuf.hpp"

namespace choir {
namespace tensorboard {
namespace {

using namespace protobuf;

std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kMask = 0xa282ead8;
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + kMask;
}

/// An Event: wall_time = 1 (double), step = 2 (int64, omitted if 0).
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  put_double(out, 1, wall_time);
  if (step != 0) put_integer(out, 2, static_cast<std::uint64_t>(step));
  return out;
}

double wall_time() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

}  // namespace

std::string record(std::string_view payload) {
  std::string out;
  put_little_endian(out, static_cast<std::uint64_t>(payload.size()));
  put_little_endian(out, masked_crc(out));
  out += payload;
  put_little_endian(out, masked_crc(payload));
  return out;
}

std::string version_event(double wall_time) {
  std::string out = event(wall_time, 0);
  put_bytes(out, 3, "brain.Event:2");  // file_version
  return out;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string session;  // SessionLog: status = 1 (START = 1)
  put_integer(session, 1, 1);
  std::string out = event(wall_time, step);
  put_bytes(out, 7, session);
  return out;
}

std::string scalars_event(double wall_time, std::int64_t step,
                          std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;  // Summary.Value: tag = 1, simple_value = 2 (float)
    put_bytes(value, 1, tag);
    put_float(value, 2, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string out = event(wall_time, step);
  put_bytes(out, 5, summary);
  return out;
}

std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& m) {
  const double rate = m.dt > 0 ? 1 / m.dt : 0;
  std::vector<std::pair<std::string, double>> list{
      {"train/loss", m.result.loss},
      {"train/learning_rate", m.result.learning_rate},
      {"train/grad_norm", m.result.grad_norm},
      {"speed/step_seconds", m.dt},
      {"speed/tokens_per_second", m.tokens * rate},
      {"speed/mfu_percent", 100 * m.mfu},
      {"phases/data", m.data},
      {"phases/forward", m.forward},
      {"phases/backward", m.backward},
      {"phases/comm", m.comm},
      {"phases/optimizer", m.optimizer},
      {"phases/other", m.other},
      {"memory/resident_bytes", static_cast<double>(m.memory)},
      {"memory/allocated_bytes", static_cast<double>(m.allocated)}};
  for (const auto& [name, value] : m.terms) list.emplace_back("train/" + name, value);
  if (m.audio_seconds > 0) list.emplace_back("speed/audio_per_second", m.audio_seconds * rate);
  if (m.scaled) list.emplace_back("train/loss_scale", m.result.loss_scale);
  if (m.val_loss) list.emplace_back("val/loss", *m.val_loss);
  for (const Validation& v : m.validations) {
    const std::string behind = v.name.empty() ? "" : "/" + v.name;
    if (!v.name.empty()) list.emplace_back("val/loss" + behind, v.loss);
    for (const auto& [name, value] : v.metrics) list.emplace_back("val/" + name + behind, value);
  }
  return list;
}

}  // namespace tensorboard

TensorboardFile::TensorboardFile(const std::string& folder, std::int64_t first_step) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const double now = tensorboard::wall_time();
  // Readers process files in the order of their names; two starts may be in the same second.
  for (auto second = static_cast<std::int64_t>(now);; ++second) {
    path_ = fmt::format("{}/events.out.tfevents.{:010d}.{}", folder, second, host_name());
    if (!std::filesystem::exists(path_)) break;
  }
  file_.open(path_, std::ios::binary);
  file_ << tensorboard::record(tensorboard::version_event(now));
  if (first_step > 1) file_ << tensorboard::record(tensorboard::start_event(now, first_step));
  if (failed || !file_.flush())
    throw StorageError("cannot write '" + path_ + "'", "is the directory writable, the disk full?");
  good_ = file_.tellp();
}

bool TensorboardFile::write(const StepMetrics& metrics) {
  if (!file_.is_open()) return true;
  file_.clear();
  file_ << tensorboard::record(tensorboard::scalars_event(tensorboard::wall_time(), metrics.step,
                                                          tensorboard::scalars_of(metrics)));
  if (file_.flush()) {
    good_ = file_.tellp();
    return true;
  }
  // Half a record would hide all later records.
  file_.close();
  std::error_code ignored;
  std::filesystem::resize_file(path_, static_cast<std::uintmax_t>(good_), ignored);
  file_.open(path_, std::ios::binary | std::ios::app);
  return false;
}

}  // namespace choir
