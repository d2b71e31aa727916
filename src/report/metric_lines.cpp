#include "choir/report/metric_lines.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include "choir/core/json_value.hpp"
#include "choir/core/regular_file.hpp"
#include "choir/core/text.hpp"

namespace choir::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A number, null, true or false at the front of `text`.
bool take_value(std::string_view& text, double& value) {
  if (take_prefix(text, "null")) return value = kNaN, true;
  if (take_prefix(text, "true")) return value = 1, true;
  if (take_prefix(text, "false")) return value = 0, true;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// Ascending x; of points at one x the last.
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

Curve& MetricLines::curve(std::string_view key, std::size_t at) {
  if (at < order_.size() && order_[at].first == key) return *order_[at].second;
  const auto found = curves_.try_emplace(std::string(key)).first;
  if (at >= order_.size()) order_.resize(at + 1);
  order_[at] = {std::string(key), &found->second};
  return found->second;
}

// A flat object of numbers. Written by hand because a document for each line takes ten times as
// long.
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
  if (!line.empty() || !(step >= 0)) return false;
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
  if (cut_) ++broken_;  // it was not the last one
  cut_ = false;
  if (add_numbers(line)) return;
  const auto json = json_unless_broken(line);
  if (!json.is_object())
    cut_ = true;
  else if (json.contains("event"))
    records_.emplace_back(line);
}

bool MetricLines::read(const std::string& path) {
  require_regular(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    add(rest.substr(0, end));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return true;
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
