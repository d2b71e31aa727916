#pragma once
// Sound at another rate by an exact windowed sinc, for measures that define theirs: as Octave's
// resample() does it.
#include <span>
#include <vector>

namespace choir {

/// Local. `samples` at `from` hertz, the result at `to`: ceil(n to / from) samples. The filter is a
/// sinc with its edge in the stop band's middle, a Kaiser window for 60 dB, and sum 1 a phase on
/// average; sound outside is 0.
std::vector<double> resample_exactly(std::span<const double> samples, int from, int to);

}  // namespace choir
