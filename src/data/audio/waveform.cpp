#include "src/data/audio/waveform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "choir/core/error.hpp"
#include "choir_features.hpp"

#ifdef CHOIR_HAVE_SOXR
#include <soxr.h>
#endif

namespace choir {
namespace {

template <class T>
T read(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void check_format(std::string_view chunk, const std::string& source) {
  const auto format = read<std::uint16_t>(chunk, 0), channels = read<std::uint16_t>(chunk, 2),
             bits = read<std::uint16_t>(chunk, 14);
  if (format != 1 || channels != 1 || bits != 16)
    throw DataError(
        fmt::format("'{}' has format {}, {} channels, {} bits; 16-bit PCM of one "
                    "channel is expected",
                    source, format, channels, bits));
}

}  // namespace

Wav parse_wav(std::string_view bytes, const std::string& source) {
  if (bytes.size() < 12 || !bytes.starts_with("RIFF") || bytes.substr(8, 4) != "WAVE")
    throw DataError(fmt::format("'{}' is not a WAV file", source));
  Wav wav;
  for (std::size_t at = 12; at + 8 <= bytes.size();) {
    const std::string_view name = bytes.substr(at, 4);
    const std::size_t length = read<std::uint32_t>(bytes, at + 4);
    const std::string_view chunk = bytes.substr(at + 8, length);
    if (name == "fmt " && chunk.size() >= 16) {
      check_format(chunk, source);
      wav.sample_rate = static_cast<int>(read<std::uint32_t>(chunk, 4));
    }
    if (name == "data" && wav.sample_rate > 0) {
      wav.samples.resize(chunk.size() / 2);
      if (!wav.samples.empty())
        std::memcpy(wav.samples.data(), chunk.data(), wav.samples.size() * 2);
      return wav;
    }
    at += 8 + length + length % 2;
  }
  throw DataError(fmt::format("WAV file '{}' has no samples", source));
}

std::string wav_header(int sample_rate, std::int64_t samples) {
  const auto data = static_cast<std::uint32_t>(samples * 2);
  const auto rate = static_cast<std::uint32_t>(sample_rate);
  std::string bytes = "RIFF";
  put(bytes, data + 36);
  bytes += "WAVEfmt ";
  put(bytes, std::uint32_t{16});
  put(bytes, std::uint16_t{1});  // PCM
  put(bytes, std::uint16_t{1});  // one channel
  put(bytes, rate);
  put(bytes, rate * 2);  // bytes a second
  put(bytes, std::uint16_t{2});
  put(bytes, std::uint16_t{16});
  bytes += "data";
  put(bytes, data);
  return bytes;
}

#ifdef CHOIR_HAVE_SOXR
std::vector<float> resample(std::span<const float> samples, int from, int to) {
  CHOIR_CHECK(from > 0 && to > 0, "rates {} and {}", from, to);
  if (from == to) return {samples.begin(), samples.end()};
  const double expected = static_cast<double>(samples.size()) * to / from;
  std::vector<float> result(static_cast<std::size_t>(std::ceil(expected)) + 16);
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  std::size_t used = 0, made = 0;
  const soxr_error_t failed =
      soxr_oneshot(from, to, 1, samples.data(), samples.size(), &used, result.data(), result.size(),
                   &made, &io, &quality, &runtime);
  if (failed != nullptr || used != samples.size())
    throw Error(ExitCode::other, fmt::format("resampling from {} to {} hertz failed: {}", from, to,
                                             failed != nullptr ? failed : "input left over"));
  result.resize(made);
  return result;
}
#else
std::vector<float> resample(std::span<const float> samples, int from, int to) {
  if (from == to) return {samples.begin(), samples.end()};
  throw DeckError(fmt::format("cannot resample audio from {} to {} hertz: this program was built "
                              "without libsoxr",
                              from, to),
                  "install libsoxr-dev and build again, or ask for the rate of the audio with "
                  "--sample-rate");
}
#endif

}  // namespace choir
