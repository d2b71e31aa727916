#include "src/train/step/gradient_noise.hpp"

#include <cmath>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {
namespace {

struct Sums {
  double small = 0, large = 0, count = 0;
  void add(const NoiseProbe& probe, double times = 1) {
    small += times * probe.small_square;
    large += times * probe.large_square;
    count += times;
  }
};

double signal_of(const Sums& sums, double small, double large) {
  return (large * sums.large - small * sums.small) / (large - small) / sums.count;
}

double noise_of(const Sums& sums, double small, double large) {
  return (sums.small - sums.large) / (1 / small - 1 / large) / sums.count;
}

}  // namespace

GradientNoise estimate_noise(std::span<const NoiseProbe> probes, std::int64_t small,
                             std::int64_t large) {
  CHOIR_CHECK(0 < small && small < large, "batches of {} and {}", small, large);
  GradientNoise result{.small = small, .large = large};
  std::vector<NoiseProbe> good;
  for (const NoiseProbe& probe : probes)
    if (std::isfinite(probe.small_square) && std::isfinite(probe.large_square))
      good.push_back(probe);
  result.probes = static_cast<int>(good.size());
  if (good.empty()) return result;
  Sums sums;
  for (const NoiseProbe& probe : good) sums.add(probe);
  const auto a = static_cast<double>(small), b = static_cast<double>(large);
  result.signal = signal_of(sums, a, b);
  result.noise = noise_of(sums, a, b);
  if (result.signal <= 0 || result.noise <= 0) return result;
  result.scale = result.noise / result.signal;
  if (good.size() < 2) return result;
  double mean = 0, squares = 0;  // of the scales that leave out one pair each
  for (const NoiseProbe& probe : good) {
    Sums others = sums;
    others.add(probe, -1);
    const double scale = noise_of(others, a, b) / signal_of(others, a, b);
    mean += scale;
    squares += scale * scale;
  }
  const double n = sums.count;
  mean /= n;
  result.error = std::sqrt(std::max(0.0, (n - 1) * (squares / n - mean * mean)));
  return result;
}

}  // namespace choir
