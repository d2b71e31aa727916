#pragma once
// Robust summaries of repeated measurements. This file is short because median_of() is all that the
// program summarises with; its readers are in five rooms.

#include <algorithm>
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

}  // namespace choir
