#pragma once
// Sound in memory: WAV files of 16-bit samples of one channel, which is all that a corpus needs,
// and conversion of sample rates by libsoxr.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

struct Wav {
  int sample_rate = 0;
  std::vector<std::int16_t> samples;
};

/// Local. Of a whole file; a length of the data beyond its end (as programs write that do not know
/// it before) means all there is. Throws DataError with `source` when it is anything else than
/// 16-bit PCM of one channel.
Wav parse_wav(std::string_view bytes, const std::string& source);

/// The header of 44 bytes before so many samples.
std::string wav_header(int sample_rate, std::int64_t samples);

/// Local, one thread, the same bits for the same input. `samples` at `from` hertz, the result at
/// `to` hertz: round(n to / from) samples, up to one more or less. Quality: soxr's HQ, 20 bits
/// (what is left of 16-bit sound after packing). Throws Error without libsoxr in the build.
std::vector<float> resample(std::span<const float> samples, int from, int to);

}  // namespace choir
