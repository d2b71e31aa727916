// The numbers of the last log line as a file for Prometheus' node_exporter (textfile collector).
// Format: prometheus.io/docs/instrumenting/exposition_formats.
#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/train/loop/metrics_log.hpp"

namespace choir {
namespace {

std::string value_text(double value) {
  if (std::isfinite(value)) return fmt::format("{:.17g}", value);
  return std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
}

/// Names have letters, digits and _ only.
std::string metric_name(const std::string& text) {
  std::string name = "choir_" + text;
  for (char& c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) c = '_';
  return name;
}

std::string label_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return escaped;
}

/// The HELP text of a metric, by its tag of TensorBoard.
std::string help_of(const std::string& tag) {
  static const std::map<std::string, const char*> kHelp{
      {"step", "Steps that the run has done."},
      {"log_time_seconds", "Unix time of the last line of the log."},
      {"train/loss", "Training loss of the last logged step, over the global batch."},
      {"train/learning_rate", "Learning rate of the last logged step."},
      {"train/grad_norm", "Norm of all gradients before clipping."},
      {"train/loss_scale", "Factor on the loss that keeps 16-bit gradients in range."},
      {"speed/step_seconds", "Wall time of a step in seconds, mean since the line before."},
      {"speed/tokens_per_second", "Training targets per second of all ranks."},
      {"speed/audio_per_second", "Seconds of audio per second of all ranks."},
      {"speed/mfu_percent", "Model FLOPs utilisation in percent of the peak in the log."},
      {"phase_seconds",
       "Seconds of a step in a phase on rank 0: data and comm are waits, for data and for the sums "
       "of gradients; optimizer is the update."},
      {"memory/resident_bytes", "Resident memory of the process of rank 0 in bytes."},
      {"memory/allocated_bytes", "Bytes that rank 0 holds by its memory plan."},
      {"energy/joules_per_step", "Energy of a step of all devices in joules."},
      {"energy/joules_per_token", "Energy of a training target in joules."},
      {"energy/total_joules", "Energy of all devices since the start in joules."},
      {"val/loss", "Loss of the last evaluation."}};
  if (const auto known = kHelp.find(tag); known != kHelp.end()) return known->second;
  const std::string name = tag.substr(tag.find('/') + 1);
  return tag.starts_with("val/") ? fmt::format("{} of the last evaluation.", name)
                                 : fmt::format("Term {} of the training loss.", name);
}

}  // namespace

std::string prometheus_text(const StepMetrics& metrics, const std::string& run, double now) {
  struct Family {
    std::string help, lines;
  };
  std::map<std::string, Family> families;  // the lines of a name must stand together
  const auto add = [&](const std::string& name, const std::string& set, double value,
                       const char* label = "set") {
    const std::string labels =
        fmt::format("run=\"{}\"{}", label_text(run),
                    set.empty() ? "" : fmt::format(",{}=\"{}\"", label, label_text(set)));
    Family& family = families[metric_name(name)];
    family.help = help_of(name);
    family.lines += fmt::format("{}{{{}}} {}\n", metric_name(name), labels, value_text(value));
  };
  add("step", "", static_cast<double>(metrics.step));
  add("log_time_seconds", "", now);
  for (const auto& [tag, value] : tensorboard::scalars_of(metrics)) {
    constexpr std::string_view kPhases = "phases/";
    if (tag.starts_with(kPhases)) {
      add("phase_seconds", tag.substr(kPhases.size()), value, "phase");
      continue;
    }
    // "val/wer/NAME" has the name of a set of validation data.
    const std::size_t second = tag.find('/', tag.find('/') + 1);
    const bool named = tag.starts_with("val/") && second != std::string::npos;
    add(tag.substr(0, named ? second : std::string::npos), named ? tag.substr(second + 1) : "",
        value);
  }
  std::string text;
  for (const auto& [name, family] : families)
    text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n{}", name, family.help, name, family.lines);
  return text;
}

PrometheusFile::PrometheusFile(std::string path, std::string run)
    : path_(std::move(path)), run_(std::move(run)) {
  require_regular(path_);
  std::ofstream file(fresh());
  if (!file)
    throw StorageError(fmt::format("log.prometheus: cannot write '{}'", path_),
                       "name a file in a folder that exists and is writable, such as the folder "
                       "that --collector.textfile.directory of node_exporter names");
  file.close();
  std::error_code failed;
  std::filesystem::remove(fresh(), failed);
}

bool PrometheusFile::write(const StepMetrics& metrics) {
  if (path_.empty()) return true;
  std::ofstream file(fresh(), std::ios::trunc);
  file << prometheus_text(metrics, run_, tensorboard::wall_time());
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(fresh(), path_, failed);
  return static_cast<bool>(file) && !failed;
}

}  // namespace choir
