// Log lines, metrics.jsonl and TensorBoard events.

#include "src/train/loop/metrics_log.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"
#include "src/run/evaluation_record.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

double per_second(double amount, double dt) {
  return dt > 0 ? amount / dt : 0;
}

/// JSON has no NaN; null is understood by every reader.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.17g}", value) : "null";
}

/// Validation results other than val_loss: "val_wer", and "val_loss/NAME" for named sets.
std::vector<std::pair<std::string, double>> more_of(const StepMetrics& m) {
  auto values = values_of(m.validations, "val_");
  std::erase_if(values, [](const auto& value) { return value.first == "val_loss"; });
  return values;
}

std::int64_t step_of_line(const std::string& line) {
  const auto at = line.find("\"step\":");
  return at == std::string::npos ? -1 : std::atoll(line.c_str() + at + 7);
}

}  // namespace

std::string format_line(const StepMetrics& m, int ranks) {
  const double sps = per_second(m.sequences, m.dt), tps = per_second(m.tokens, m.dt);
  std::string line = fmt::format(
      "step={} loss={:.4f} dt={:.4f} dtf={:.4f} dtb={:.4f} sps={:.2f} sps_per_gpu={:.2f} "
      "tps={:.0f} tps_per_gpu={:.0f} mfu={:.2f} lr={:.3g}",
      m.step, m.result.loss, m.dt, m.forward, m.backward, sps, sps / ranks, tps, tps / ranks,
      100 * m.mfu, m.result.learning_rate);
  for (const auto& [name, value] : m.terms) line += fmt::format(" {}={:.4f}", name, value);
  if (m.audio_seconds > 0) line += fmt::format(" rtfx={:.0f}", per_second(m.audio_seconds, m.dt));
  if (m.energy)
    line += fmt::format(" energy_j={:.4g} j_per_token={:.3g}", *m.energy, m.energy_of_token());
  if (m.scaled) line += fmt::format(" loss_scale={:.0f}", m.result.loss_scale);
  if (m.train_loss) line += fmt::format(" train_loss={:.4f}", *m.train_loss);
  if (m.val_loss) line += fmt::format(" val_loss={:.4f}", *m.val_loss);
  for (const auto& [name, value] : more_of(m)) line += fmt::format(" {}={:.4f}", name, value);
  if (!m.result.updated) line += " skipped";
  return line;
}

std::string fitting_line(const std::string& line, std::size_t columns) {
  // The first that are left out; fields that are not listed are left out before all of them.
  constexpr std::array<std::string_view, 16> kLeastFirst{
      "energy_j", "tps_per_gpu", "j_per_token", "sps_per_gpu", "dtb", "dtf",
      "sps",      "lr",          "dt",          "rtfx",        "mfu", "train_loss",
      "tps",      "val_cer",     "val_wer",     "val_loss"};
  std::vector<std::string> fields = split(line, ' ');
  const auto importance = [&](const std::string& field) -> std::ptrdiff_t {
    const std::string_view name = std::string_view(field).substr(0, field.find('='));
    if (name == "step" || name == "loss" || name == "skipped") return std::ssize(kLeastFirst);
    const auto found = std::ranges::find(kLeastFirst, name);
    return found == kLeastFirst.end() ? -1 : found - kLeastFirst.begin();
  };
  std::string text = join(fields, " ");
  while (text.size() > columns) {
    const auto least = std::ranges::min_element(fields, {}, importance);
    if (importance(*least) == std::ssize(kLeastFirst)) break;
    fields.erase(least);
    text = join(fields, " ");
  }
  return text;
}

std::string compact_lines(const StepMetrics& m) {
  std::string text;
  if (m.val_loss) {
    text = fmt::format("step {}: ", m.step);
    if (m.train_loss) text += fmt::format("train loss {:.4f}, ", *m.train_loss);
    text += fmt::format("val loss {:.4f}", *m.val_loss);
    for (const auto& [name, value] : more_of(m))
      text += fmt::format(", val {} {:.4f}", name.substr(std::string_view("val_").size()), value);
    text += "\n";
  }
  text += fmt::format("iter {}: loss {:.4f}, time {:.2f}ms, mfu {:.2f}%", m.step, m.result.loss,
                      1e3 * m.dt, 100 * m.mfu);
  if (m.audio_seconds > 0 && m.dt > 0)
    text += fmt::format(", {:.1f} x real time", m.audio_seconds / m.dt);
  return m.result.updated ? text : text + ", skipped";
}

std::string metrics_legend(const std::string& peak_text) {
  return "legend:\n"
         "  step          optimizer steps so far\n"
         "  loss          mean over all tokens (speech: labels) of the global batch\n"
         "  dt            seconds a step (mean since the line before)\n"
         "  dtf, dtb      of it in forward, in backward (with the reductions it hides)\n"
         "  sps, tps      sequences (utterances) and tokens (labels) a second, all ranks; "
         "_per_gpu: per "
         "rank\n"
         "  mfu           percent of peak: (6 N + 12 L H Q T) FLOPs a token, N without positions;\n"
         "                " +
         peak_text +
         "\n"
         "  lr            learning rate of this step\n"
         "  rtfx          seconds of audio a second, all ranks (speech)\n"
         "  energy_j      joules a step of all devices, from their counters (NVML of cards, RAPL "
         "of\n"
         "                processors), with all that runs on them; j_per_token: a token (label)\n"
         "  loss_scale    factor on the loss of this step (fp16-mixed)\n"
         "  train_loss    mean training loss since the evaluation before\n"
         "  val_loss      mean over the validation data (lines with an evaluation)\n"
         "  val_wer       edits by words of the references; val_cer by characters (speech); of one "
         "of\n"
         "                several sets val_loss/NAME, val_wer/NAME, val_cer/NAME\n"
         "  A line on a terminal has the fields that fit; log.txt has all of them.\n"
         "  metrics.jsonl has the same, and grad_norm, data, comm, optimizer, other, mem, "
         "allocated,\n"
         "                energy_total_j (since training began, between the steps included)";
}

std::string to_json(const StepMetrics& m, int ranks) {
  const double sps = per_second(m.sequences, m.dt), tps = per_second(m.tokens, m.dt);
  std::string text = fmt::format(
      "{{\"step\":{},\"loss\":{},\"lr\":{},\"grad_norm\":{},\"dt\":{},\"dtf\":{},\"dtb\":{},"
      "\"data\":{},\"comm\":{},\"optimizer\":{},\"other\":{},\"sps\":{},\"sps_per_gpu\":{},\"tps\":"
      "{},"
      "\"tps_per_gpu\":{},\"mfu\":{},\"mem\":{},\"allocated\":{},\"skipped\":{}",
      m.step, number(m.result.loss), number(m.result.learning_rate), number(m.result.grad_norm),
      number(m.dt), number(m.forward), number(m.backward), number(m.data), number(m.comm),
      number(m.optimizer), number(m.other), number(sps), number(sps / ranks), number(tps),
      number(tps / ranks), number(100 * m.mfu), m.memory, m.allocated, !m.result.updated);
  for (const auto& [name, value] : m.terms) text += fmt::format(",\"{}\":{}", name, number(value));
  if (m.audio_seconds > 0) text += ",\"rtfx\":" + number(per_second(m.audio_seconds, m.dt));
  if (m.energy)
    text += fmt::format(",\"energy_j\":{},\"j_per_token\":{},\"energy_total_j\":{}",
                        number(*m.energy), number(m.energy_of_token()), number(*m.total_energy));
  if (m.scaled) text += ",\"loss_scale\":" + number(m.result.loss_scale);
  if (m.train_loss) text += ",\"train_loss\":" + number(*m.train_loss);
  if (m.val_loss) text += ",\"val_loss\":" + number(*m.val_loss);
  for (const auto& [name, value] : more_of(m))
    text += fmt::format(",\"{}\":{}", name, number(value));
  return text + "}";
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t last_step) {
  std::string kept;
  const std::string fresh = path + ".new";
  for (const std::string& name : {path, fresh}) require_regular(name);
  {
    std::ifstream before(path);
    for (std::string line; std::getline(before, line);) {
      if (!line.ends_with('}')) continue;
      const std::int64_t step = step_of_line(line);
      if (step <= last_step)
        kept += line + "\n";
      else
        last_dropped_ = std::max(last_dropped_, step);
    }
  }
  write_text_file(fresh, kept);
  std::filesystem::rename(fresh, path);
  file_.open(path, std::ios::app);
  if (!file_)
    throw StorageError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)),
                       storage_cure(errno));
}

bool MetricsFile::write(const std::string& line) {
  if (!file_.is_open()) return true;
  file_.clear();
  file_ << line << '\n';
  return static_cast<bool>(file_.flush());
}

namespace tensorboard {

double wall_time() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
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
  if (m.energy) {
    list.emplace_back("energy/joules_per_step", *m.energy);
    list.emplace_back("energy/joules_per_token", m.energy_of_token());
    list.emplace_back("energy/total_joules", *m.total_energy);
  }
  if (m.scaled) list.emplace_back("train/loss_scale", m.result.loss_scale);
  if (m.val_loss) list.emplace_back("val/loss", *m.val_loss);
  for (auto& value : values_of(m.validations, "val/"))
    if (value.first != "val/loss") list.push_back(std::move(value));
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
