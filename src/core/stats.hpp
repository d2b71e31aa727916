#pragma once
// Robust summaries of repeated measurements.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace choir {

/// The middle value; the mean of the two middle values if their number is even; 0 if there are
/// none. Times are summarised by the median and not by the mean, because machines stall.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The speed of a run by the lines of its log: their median without the first of several, in which
/// caches are cold, and without values that are not finite. NaN if there is none.
inline double median_of_lines(const std::vector<double>& lines) {
  std::vector<double> values;
  for (std::size_t i = lines.size() > 1 ? 1 : 0; i < lines.size(); ++i)
    if (std::isfinite(lines[i])) values.push_back(lines[i]);
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : median_of(std::move(values));
}
/// The name of this number wherever it is shown.
constexpr const char* kMedianOfLines = "median of the log's lines";

}  // namespace choir
