#include "src/data/metrics/intelligibility.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/features/spectra.hpp"
#include "src/data/audio/waveform.hpp"

namespace choir {
namespace {

using Sound = std::vector<double>;

constexpr int kStoiRate = 10000;
constexpr std::int64_t kFrame = 256, kStep = 128, kPoints = 512;
constexpr std::int64_t kBands = 15, kSegment = 30;
constexpr double kLowestBand = 150, kRangeDb = 40, kClipDb = 15;
constexpr double kTiny = std::numeric_limits<double>::epsilon();

/// Hann without its zeros at both ends.
std::array<double, kFrame> frame_window() {
  std::array<double, kFrame> window{};
  for (std::int64_t n = 0; n < kFrame; ++n)
    window[static_cast<std::size_t>(n)] =
        0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n + 1) / (kFrame + 1));
  return window;
}

/// Windowed frames, one after another.
Sound frames_of(const Sound& sound) {
  const auto window = frame_window();
  Sound frames;
  for (std::int64_t first = 0; first + kFrame < std::ssize(sound); first += kStep)
    for (std::int64_t n = 0; n < kFrame; ++n)
      frames.push_back(window[static_cast<std::size_t>(n)] *
                       sound[static_cast<std::size_t>(first + n)]);
  return frames;
}

/// True for frames at most 40 dB below the loudest.
std::vector<bool> loud_frames(const Sound& frames) {
  std::vector<double> level;
  for (auto frame = frames.begin(); frame != frames.end(); frame += kFrame) {
    double power = 0;
    for (auto x = frame; x != frame + kFrame; ++x) power += *x * *x;
    level.push_back(20 * std::log10(std::sqrt(power) + kTiny));
  }
  std::vector<bool> loud(level.size());
  const double loudest = level.empty() ? 0 : *std::max_element(level.begin(), level.end());
  for (std::size_t i = 0; i < level.size(); ++i) loud[i] = loudest - kRangeDb - level[i] < 0;
  return loud;
}

/// Overlap-adds the kept frames as if they had been neighbours.
Sound joined(const Sound& frames, const std::vector<bool>& kept) {
  const auto count = std::count(kept.begin(), kept.end(), true);
  Sound sound(count > 0 ? static_cast<std::size_t>((count - 1) * kStep + kFrame) : 0);
  auto to = sound.begin();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    const auto from = frames.begin() + static_cast<std::ptrdiff_t>(i) * kFrame;
    for (std::int64_t n = 0; n < kFrame; ++n) to[n] += from[n];
    to += std::min<std::ptrdiff_t>(kStep, sound.end() - to);
  }
  return sound;
}

struct BandEdges {
  std::int64_t first, last;  ///< bins [first, last)
};

std::array<BandEdges, kBands> third_octaves() {
  const double width = static_cast<double>(kStoiRate) / kPoints;
  const auto nearest = [&](double hertz) {  // the lower of two that are equally near
    return std::min<std::int64_t>(static_cast<std::int64_t>(std::ceil(hertz / width - 0.5)),
                                  kPoints / 2);
  };
  std::array<BandEdges, kBands> edges{};
  for (std::int64_t j = 0; j < kBands; ++j) {
    const auto at = static_cast<double>(2 * j);
    edges[static_cast<std::size_t>(j)] = {nearest(kLowestBand * std::exp2((at - 1) / 6)),
                                          nearest(kLowestBand * std::exp2((at + 1) / 6))};
  }
  return edges;
}

/// Magnitudes of the bands, [kBands, frames].
Sound envelopes(const Sound& sound) {
  const Sound frames = frames_of(sound);
  const std::int64_t count = std::ssize(frames) / kFrame;
  const ops::RealTransform<double> transform(kPoints);
  const auto edges = third_octaves();
  Sound padded(kPoints), spectrum(static_cast<std::size_t>(2 * transform.bins()));
  Sound bands(static_cast<std::size_t>(kBands * count));
  for (std::int64_t t = 0; t < count; ++t) {
    std::copy_n(frames.begin() + t * kFrame, kFrame, padded.begin());
    transform.forward(1, padded.data(), spectrum.data());
    for (std::int64_t j = 0; j < kBands; ++j) {
      const BandEdges& edge = edges[static_cast<std::size_t>(j)];
      double power = 0;
      for (std::int64_t i = 2 * edge.first; i < 2 * edge.last; ++i)
        power += spectrum[static_cast<std::size_t>(i)] * spectrum[static_cast<std::size_t>(i)];
      bands[static_cast<std::size_t>(j * count + t)] = std::sqrt(power);
    }
  }
  return bands;
}

/// Correlation of one band over a segment. The changed band is scaled to the level of the clean one
/// and clipped 15 dB above it.
double correlation(const double* clean, const double* changed) {
  double clean_power = 0, changed_power = 0;
  for (std::int64_t n = 0; n < kSegment; ++n)
    clean_power += clean[n] * clean[n], changed_power += changed[n] * changed[n];
  const double scale = std::sqrt(clean_power) / (std::sqrt(changed_power) + kTiny);
  const double most = 1 + std::pow(10, kClipDb / 20);
  std::array<double, kSegment> y{};
  double clean_mean = 0, mean = 0;
  for (std::int64_t n = 0; n < kSegment; ++n) {
    y[static_cast<std::size_t>(n)] = std::min(changed[n] * scale, clean[n] * most);
    clean_mean += clean[n] / kSegment, mean += y[static_cast<std::size_t>(n)] / kSegment;
  }
  double together = 0, clean_square = 0, square = 0;
  for (std::int64_t n = 0; n < kSegment; ++n) {
    const double a = clean[n] - clean_mean, b = y[static_cast<std::size_t>(n)] - mean;
    together += a * b, clean_square += a * a, square += b * b;
  }
  return together / ((std::sqrt(clean_square) + kTiny) * (std::sqrt(square) + kTiny));
}

Sound at_stoi_rate(std::span<const std::int16_t> samples, int rate) {
  Sound sound(samples.size());
  std::transform(samples.begin(), samples.end(), sound.begin(),
                 [](std::int16_t x) { return x * 0x1p-15; });
  return resample_exactly(sound, rate, kStoiRate);
}

}  // namespace

std::optional<double> stoi(std::span<const std::int16_t> clean,
                           std::span<const std::int16_t> changed, int rate) {
  CHOIR_CHECK(clean.size() == changed.size(), "{} and {} samples", clean.size(), changed.size());
  const Sound clean_frames = frames_of(at_stoi_rate(clean, rate));
  const std::vector<bool> kept = loud_frames(clean_frames);
  const Sound x = envelopes(joined(clean_frames, kept));
  const Sound y = envelopes(joined(frames_of(at_stoi_rate(changed, rate)), kept));
  const std::int64_t frames = std::ssize(x) / kBands;
  if (frames < kSegment) return std::nullopt;
  double sum = 0;
  for (std::int64_t j = 0; j < kBands; ++j)
    for (std::int64_t t = 0; t + kSegment <= frames; ++t)
      sum += correlation(x.data() + j * frames + t, y.data() + j * frames + t);
  return sum / static_cast<double>(kBands * (frames - kSegment + 1));
}

}  // namespace choir
