#pragma once
// Sound in memory: parsing and headers of WAV files with 16-bit samples of one channel, which is
// all that a corpus needs, and conversion of sample rates with libsoxr.
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

/// Local. Parses a whole file. If the data length exceeds the file (as written by programs that do
/// not know it in advance), all samples present are used. Throws DataError naming `source` if it is
/// not 16-bit PCM of one channel.
Wav parse_wav(std::string_view bytes, const std::string& source);

/// The header of 44 bytes for this number of samples.
std::string wav_header(int sample_rate, std::int64_t samples);

/// Local, single-threaded, bit-reproducible. Converts `samples` from `from` to `to` hertz: round(n
/// to / from) samples, at most one more or less. Uses soxr's quality HQ, 20 bits, which exceeds
/// 16-bit sound. Throws Error in a build without libsoxr.
std::vector<float> resample(std::span<const float> samples, int from, int to);

}  // namespace choir
