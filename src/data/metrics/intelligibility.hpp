#pragma once
// A measure of the intelligibility of speech after a codec, a channel or noise.

#include <cstdint>
#include <optional>
#include <span>

namespace choir {

/// Short-time objective intelligibility (Taal, Hendriks, Heusdens, Jensen 2011), about 0 ... 1:
/// correlations of the envelopes of 15 third-octave bands from 150 Hz over 384 ms, at 10 kHz;
/// frames of 25.6 ms that are more than 40 dB below the loudest are excluded. Local. Both signals
/// [samples] have the same length (else Error) and `rate` in hertz and are aligned; their scales do
/// not matter. Returns nothing if fewer than 384 ms of speech remain.
std::optional<double> stoi(std::span<const std::int16_t> clean,
                           std::span<const std::int16_t> changed, int rate);

}  // namespace choir
