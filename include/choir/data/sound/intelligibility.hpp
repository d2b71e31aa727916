#pragma once
// How well speech can be understood that a codec, a channel or noise has changed.
#include <cstdint>
#include <optional>
#include <span>

namespace choir {

/// Short-time objective intelligibility (Taal, Hendriks, Heusdens, Jensen 2011), about 0 ... 1:
/// correlations of the envelopes of 15 third-octave bands from 150 Hz over 384 ms, of sound at
/// 10 kHz, frames of 25.6 ms more than 40 dB below the loudest left out. Local. Both [samples] of
/// one length (else Error) at `rate` hertz, in step with each other; their scales do not matter.
/// Nothing where fewer than 384 ms of speech are left.
std::optional<double> stoi(std::span<const std::int16_t> clean,
                           std::span<const std::int16_t> changed, int rate);

}  // namespace choir
