#pragma once
// Sample rate conversion of whole signals by libsoxr.
#include <span>
#include <vector>

namespace choir {

/// Local, one thread, the same bits for the same input. `samples` at `from` hertz, the result at
/// `to` hertz: round(n to / from) samples, up to one more or less. Quality: soxr's HQ, 20 bits
/// (what is left of 16-bit sound after packing). Throws Error without libsoxr in the build.
std::vector<float> resample(std::span<const float> samples, int from, int to);

}  // namespace choir
