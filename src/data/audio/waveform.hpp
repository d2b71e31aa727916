#pragma once
// Sound in memory and WAV files: parsing, headers and a writer of WAV files with 16-bit samples of
// one channel, which is all that a corpus needs, and conversion of sample rates with libsoxr and
// with an exact windowed sinc, as Octave's resample(), for measures whose definition requires it.

#include <cstdint>
#include <memory>
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

/// Writes under a temporary name; finish() renames the file to `path`. If it is destroyed before
/// finish(), nothing remains. Local. Throws StorageError if writing fails.
class WavWriter {
 public:
  WavWriter(const std::string& path, int sample_rate);
  ~WavWriter();
  WavWriter(WavWriter&&) noexcept;

  /// Throws StorageError beyond 2^31 - 19 samples, the capacity of a WAV file.
  void append(std::span<const std::int16_t> samples);
  std::int64_t samples() const;
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Local. Converts `samples` from `from` to `to` hertz: ceil(n to / from) samples. The filter is a
/// sinc with its edge at half the lower rate, a Kaiser window for 60 dB, and a sum of 1 per phase
/// on average; samples outside are 0.
std::vector<double> resample_exactly(std::span<const double> samples, int from, int to);

}  // namespace choir
