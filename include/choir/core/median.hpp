#pragma once
// The typical of several measurements.
#include <vector>

namespace choir {

/// The middle of a copy in order, of an even number the mean of the two in the middle; 0 of
/// nothing. Times are summed up so, never by their mean: machines stall.
double median_of(std::vector<double> values);

}  // namespace choir
