#include "src/report/metric_lines.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The largest number up to which a double represents all integers.
constexpr double kMostSteps = 9007199254740992.0;

/// True for a step that a run can have.
bool is_step(double step) {
  return step >= 0 && step <= kMostSteps && step == std::floor(step);
}

/// True for an object of a legal step that holds more than numbers, for example the times of the
/// ranks, or a record that a newer program writes.
bool is_other_record(const nlohmann::json& json) {
  const auto step = json.find("step");
  return step->is_number() && is_step(step->get<double>()) &&
         std::ranges::any_of(json, [](const nlohmann::json& value) {
           return value.is_structured() || value.is_string();
         });
}

/// Parses a number, null, true or false at the front of `text`. The library's "inf" and "nan" are
/// not JSON.
bool take_value(std::string_view& text, double& value) {
  if (take_prefix(text, "null")) return value = kNaN, true;
  if (take_prefix(text, "true")) return value = 1, true;
  if (take_prefix(text, "false")) return value = 0, true;
  if (text.empty() || std::string_view("-0123456789").find(text[0]) == std::string_view::npos)
    return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// Sorts by x; of points at the same x the last one remains.
void sort_curve(Curve& curve) {
  std::vector<std::size_t> order(curve.x.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return curve.x[a] < curve.x[b]; });
  Curve sorted;
  for (const std::size_t i : order) {
    if (!sorted.x.empty() && sorted.x.back() == curve.x[i]) {
      sorted.y.back() = curve.y[i];
      continue;
    }
    sorted.x.push_back(curve.x[i]);
    sorted.y.push_back(curve.y[i]);
  }
  curve = std::move(sorted);
}

}  // namespace

std::int64_t clamped_integer(double value) {
  constexpr double kBound = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return 0;
  if (value >= kBound) return std::numeric_limits<std::int64_t>::max();
  return value <= -kBound ? std::numeric_limits<std::int64_t>::min()
                          : static_cast<std::int64_t>(value);
}

nlohmann::json document_of(std::string_view text) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size() && depth <= kDeepest; ++at) {
    const char c = text[at];
    if (quoted && c == '\\')
      ++at;
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted)
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
  }
  if (depth > kDeepest) return nlohmann::json(nlohmann::json::value_t::discarded);
  return json_unless_broken(text);
}

Curve& MetricLines::curve(std::string_view key, std::size_t at) {
  if (at < order_.size() && order_[at].first == key) return *order_[at].second;
  const auto found = curves_.try_emplace(std::string(key)).first;
  if (at >= order_.size()) order_.resize(at + 1);
  order_[at] = {std::string(key), &found->second};
  return found->second;
}

// Parses a flat object of numbers. Written by hand, because a JSON document per line takes ten
// times as long.
bool MetricLines::add_numbers(std::string_view line) {
  fields_.clear();
  double step = kNaN;
  if (!take_prefix(line, "{")) return false;
  while (true) {
    if (!take_prefix(line, "\"")) return false;
    const std::size_t end = line.find('"');
    if (end == std::string_view::npos) return false;
    const std::string_view key = line.substr(0, end);
    if (key.find('\\') != std::string_view::npos) return false;
    line.remove_prefix(end + 1);
    double value = 0;
    if (!take_prefix(line, ":") || !take_value(line, value)) return false;
    if (key == "step") step = value;
    fields_.emplace_back(key, value);
    if (take_prefix(line, "}")) break;
    if (!take_prefix(line, ",")) return false;
  }
  if (!line.empty() || !is_step(step)) return false;
  repeated_ = repeated_ || step <= last_step_;
  last_step_ = step;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    Curve& to = curve(fields_[i].first, i);
    to.x.push_back(step);
    to.y.push_back(fields_[i].second);
  }
  ++lines_;
  return true;
}

void MetricLines::add(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) return;
  if (cut_) ++broken_;  // it was not the last line
  cut_ = false;
  if (line.size() > kLongest) {
    ++broken_;
    return;
  }
  if (add_numbers(line)) return;
  const auto json = document_of(line);
  if (!json.is_object())
    cut_ = true;
  else if (json.contains("event"))
    records_.emplace_back(line);
  else if (json.contains("step") && !is_other_record(json))
    ++broken_;
}

bool MetricLines::read(const std::string& path) {
  require_regular(path);
  constexpr std::size_t kMostMiB = 4096;
  if (const std::string excess = file_excess(path, kMostMiB); !excess.empty())
    throw DataError(fmt::format("'{}' {}", path, excess), "is it the metrics.jsonl of a run?");
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  // The part that was read so far; one byte more than kLongest if the line is longer.
  std::string line;
  std::vector<char> buffer(std::size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    std::string_view rest(buffer.data(), static_cast<std::size_t>(file.gcount()));
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      line += rest.substr(0, std::min(end, kLongest + 1 - std::min(line.size(), kLongest)));
      if (end == std::string_view::npos) break;
      add(line);
      line.clear();
      rest.remove_prefix(end + 1);
    }
  }
  add(line);
  return !file.bad();
}

std::map<std::string, Curve> MetricLines::take_curves() {
  std::map<std::string, Curve> result;
  for (auto& [key, found] : curves_) {
    if (repeated_) sort_curve(found);
    result[key] = std::move(found);
  }
  curves_.clear();
  order_.clear();
  return result;
}

}  // namespace choir::report
