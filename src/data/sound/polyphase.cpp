#include "src/data/sound/polyphase.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>

#include "choir/core/error.hpp"

namespace choir {
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
