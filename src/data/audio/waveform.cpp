#include "src/data/audio/waveform.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <optional>

#include "choir/core/error.hpp"
#include "choir_features.hpp"
#include "src/core/file.hpp"

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

namespace {

constexpr std::int64_t kWavHeaderBytes = 44;
constexpr std::int64_t kMostWavSamples = (std::int64_t{1} << 31) - 19;  // sizes are 32 bits

}  // namespace

struct WavWriter::State {
  std::string path, temporary;
  int sample_rate = 0;
  std::int64_t samples = 0;
  std::optional<PosixFile> file;
};

WavWriter::WavWriter(const std::string& path, int sample_rate) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->temporary = path + ".tmp";
  state_->sample_rate = sample_rate;
  state_->file.emplace(PosixFile::for_writing(state_->temporary));
}

WavWriter::WavWriter(WavWriter&&) noexcept = default;

WavWriter::~WavWriter() {
  if (state_ == nullptr || !state_->file) return;
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

void WavWriter::append(std::span<const std::int16_t> samples) {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  if (std::ssize(samples) > kMostWavSamples - s.samples)
    throw StorageError(fmt::format("'{}' exceeds the length of a WAV file", s.path),
                       "split the recording into parts of a day or less");
  s.file->write_at(samples.data(), samples.size_bytes(), kWavHeaderBytes + 2 * s.samples);
  s.samples += std::ssize(samples);
}

std::int64_t WavWriter::samples() const {
  return state_->samples;
}

void WavWriter::finish() {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  const std::string header = wav_header(s.sample_rate, s.samples);
  s.file->write_at(header.data(), header.size(), 0);
  s.file.reset();
  rename_file(s.temporary, s.path);
}

namespace {

/// Modified Bessel function of the first kind, order 0, by its series.
double bessel_i0(double x) {
  double term = 1, sum = 1;
  for (int k = 1; term > 1e-18 * sum; ++k) {
    term *= (x / (2 * k)) * (x / (2 * k));
    sum += term;
  }
  return sum;
}

/// The low pass at `up` times the rate, centred at index size / 2.
std::vector<double> low_pass(std::int64_t up, std::int64_t down) {
  constexpr double kRejection = 60;  // dB
  const double edge = 1 / (2 * static_cast<double>(std::max(up, down))), roll_off = edge / 10;
  const auto reach = static_cast<std::int64_t>(std::ceil((kRejection - 8) / (28.714 * roll_off)));
  const double beta = 0.1102 * (kRejection - 8.7);
  std::vector<double> taps;
  for (std::int64_t n = -reach; n <= reach; ++n) {
    const double x = 2 * std::numbers::pi * edge * static_cast<double>(n);
    const double at = static_cast<double>(n) / static_cast<double>(reach);
    taps.push_back((n == 0 ? 1 : std::sin(x) / x) *
                   bessel_i0(beta * std::sqrt(std::max(0.0, 1 - at * at))));
  }
  const double sum = std::accumulate(taps.begin(), taps.end(), 0.0);
  for (double& tap : taps) tap *= static_cast<double>(up) / sum;
  return taps;
}

}  // namespace

std::vector<double> resample_exactly(std::span<const double> samples, int from, int to) {
  CHOIR_CHECK(from > 0 && to > 0, "rates {} and {}", from, to);
  if (from == to) return {samples.begin(), samples.end()};
  const std::int64_t up = to / std::gcd(from, to), down = from / std::gcd(from, to);
  const std::vector<double> taps = low_pass(up, down);
  const std::int64_t reach = std::ssize(taps) / 2, count = std::ssize(samples);
  std::vector<double> result(static_cast<std::size_t>((count * up + down - 1) / down));
  for (std::int64_t m = 0; m < std::ssize(result); ++m) {
    // Sample n is at n up; the taps cover m down - reach to m down + reach.
    const std::int64_t low = std::max<std::int64_t>(0, (m * down - reach + up - 1) / up);
    const std::int64_t high = std::min(count - 1, (m * down + reach) / up);
    double sum = 0;
    for (std::int64_t n = low; n <= high; ++n)
      sum += samples[static_cast<std::size_t>(n)] *
             taps[static_cast<std::size_t>(m * down - n * up + reach)];
    result[static_cast<std::size_t>(m)] = sum;
  }
  return result;
}

}  // namespace choir
