// The numbers of the last log line as a file for Prometheus' node_exporter (textfile collector).
// Format: prometheus.io/docs/instrumenting/exposition_formats.
#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

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

}  // namespace

std::string prometheus_text(const StepMetrics& metrics, const std::string& run, double now) {
  std::map<std::string, std::string> families;  // the lines of a name must stand together
  const auto add = [&](const std::string& name, const std::string& set, double value) {
    const std::string labels =
        fmt::format("run=\"{}\"{}", label_text(run),
                    set.empty() ? "" : fmt::format(",set=\"{}\"", label_text(set)));
    families[metric_name(name)] +=
        fmt::format("{}{{{}}} {}\n", metric_name(name), labels, value_text(value));
  };
  add("step", "", static_cast<double>(metrics.step));
  add("log_time_seconds", "", now);
  for (const auto& [tag, value] : tensorboard::scalars_of(metrics)) {
    // "val/wer/NAME" has the name of a set of validation data.
    const std::size_t second = tag.find('/', tag.find('/') + 1);
    const bool named = tag.starts_with("val/") && second != std::string::npos;
    add(tag.substr(0, named ? second : std::string::npos), named ? tag.substr(second + 1) : "",
        value);
  }
  std::string text;
  for (const auto& [name, lines] : families)
    text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n{}", name,
                        "A number of the last log line of choir train.", name, lines);
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
