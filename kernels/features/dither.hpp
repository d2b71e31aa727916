#pragma once
// Normal numbers from words of Philox by Box and Muller, in single precision on every device, with
// sine and cosine of an angle that is a word, in units of 2^-32 turns. V is float or a vector of
// floats.

#include <cstdint>

#include "choir/core/philox.hpp"
#include "kernels/cpu/normal_tail.hpp"

namespace choir {

/// sin(2 pi t), |t| <= 1/4: the series up to t^11; the next term is below 6e-8.
template <class V>
CHOIR_HOST_DEVICE inline V sine_of_turns(V t) {
  return t * polynomial(t * t, -15.0946426f, 42.0586939f, -76.7058598f, 81.6052493f, -41.3417022f,
                        6.28318531f);
}

/// The words for samples 4i ... 4i + 3 of a sample id.
CHOIR_HOST_DEVICE inline PhiloxBlock dither_words(PhiloxKey key, std::int64_t i,
                                                  std::uint64_t sample) {
  return philox(key, {static_cast<std::uint32_t>(i), 0u, static_cast<std::uint32_t>(sample),
                      static_cast<std::uint32_t>(sample >> 32)});
}

/// A quarter turn minus the angle's distance from 0, signed: its sine is the cosine of the angle.
/// Exact.
CHOIR_HOST_DEVICE inline std::int32_t complement(std::uint32_t angle) {
  const std::uint32_t distance = angle < 0x80000000u ? angle : 0u - angle;
  return static_cast<std::int32_t>(0x40000000u - distance);
}

}  // namespace choir
