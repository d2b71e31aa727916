// Numbers for charts: ticks, their texts, and curves reduced to the resolution of a screen.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/core/clock.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {

std::vector<double> round_ticks(double low, double high, int n) {
  if (!(high > low) || n < 1 || !std::isfinite(high - low)) return {low};
  const double rough = (high - low) / n;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  // The number of ticks is bounded by n, and not by a variable that may be too large to grow.
  const double first = std::ceil(low / step - 1e-9);
  std::vector<double> ticks;
  for (int i = 0; i <= 2 * n; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= high + 1e-9 * step)) break;
    if (ticks.empty() || tick > ticks.back()) ticks.push_back(tick == 0 ? 0 : tick);
  }
  return ticks.empty() ? std::vector<double>{low} : ticks;
}

std::string tick_text(double value, double step) {
  if (value == 0) return "0";
  const double size = std::max(std::abs(value), std::abs(step));
  if (std::max(size, 3 * std::abs(step)) < 1e-4) return fmt::format("{:.2g}", value);
  if (size >= 1e15) return fmt::format("{:.2g}", value);
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
  for (const auto& [from, letter] : kUnits)
    if (size >= from) {
      const double unit = from == 1e4 ? 1e3 : from;
      return fmt::format("{:.4g}{}", value / unit, letter);
    }
  int digits = 0;
  for (double s = std::abs(step); digits < 6 && std::abs(s - std::round(s)) > 1e-6 * s; s *= 10)
    ++digits;
  return fmt::format("{:.{}f}", value, digits);
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return tick_text(value, value);
  if (size >= 1e4) return format_count(clamped_integer(std::round(value)));
  return fmt::format("{:.{}g}", value, size < 1e-3 ? 2 : 4);
}

std::vector<CurveColumn> running_mean(const std::vector<CurveColumn>& columns) {
  const std::size_t n = columns.size(), most = std::max<std::size_t>(2, n / 40);
  std::vector<CurveColumn> means = columns;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t reach = std::min({most, i / 4, n - 1 - i});  // losses fall steeply at first
    double sum = 0;
    for (std::size_t k = i - reach; k <= i + reach; ++k) sum += columns[k].mean;
    means[i].mean = sum / static_cast<double>(2 * reach + 1);
  }
  return means;
}

std::vector<CurveColumn> decimate(const Curve& curve, double from, double to, int columns) {
  std::vector<CurveColumn> result;
  const double width = (to - from) / columns;
  const bool all = curve.x.size() <= static_cast<std::size_t>(columns) || !(width > 0);
  std::int64_t column = -1;
  double count = 0;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    const double x = curve.x[i], y = curve.y[i];
    if (!std::isfinite(y)) continue;
    const auto mine = all ? static_cast<std::int64_t>(i)
                          : std::min<std::int64_t>(clamped_integer((x - from) / width), columns);
    if (result.empty() || mine != column) {
      result.push_back({x, y, y, y});
      column = mine;
      count = 1;
      continue;
    }
    CurveColumn& c = result.back();
    ++count;
    c.x += (x - c.x) / count;
    c.mean += (y - c.mean) / count;
    c.low = std::min(c.low, y);
    c.high = std::max(c.high, y);
  }
  return result;
}

}  // namespace choir::report
