#pragma once
// Robust summaries of repeated measurements.

#include <vector>

namespace choir {

/// The middle value; the mean of the two middle values if their number is even; 0 if there are
/// none. Times are summarised by the median and not by the mean, because machines stall.
double median_of(std::vector<double> values);

}  // namespace choir
