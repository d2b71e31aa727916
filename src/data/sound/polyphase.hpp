#pragma once
// Resampling with an exact windowed sinc, as Octave's resample(), for measures whose definition
// requires it.
#include <span>
#include <vector>

namespace choir {

/// Local. Converts `samples` from `from` to `to` hertz: ceil(n to / from) samples. The filter is a
/// sinc with its edge at half the lower rate, a Kaiser window for 60 dB, and a sum of 1 per phase
/// on average; samples outside are 0.
std::vector<double> resample_exactly(std::span<const double> samples, int from, int to);

}  // namespace choir
