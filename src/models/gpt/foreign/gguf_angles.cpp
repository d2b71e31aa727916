#include "src/models/gpt/foreign/gguf_angles.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace choir {
namespace {

/// Tolerance of comparisons: divisors are f32, and their differences lose some digits.
constexpr double kSame = 1e-5;

/// The multiple of `grid` that `value` was rounded from, or `value` if none is near.
double meant(double value, double grid) {
  const double round = std::round(value / grid) * grid;
  return std::fabs(round - value) <= 1e-3 * grid + kSame * std::fabs(value) ? round : value;
}

}  // namespace

std::vector<float> gguf_divisors(double theta, const ops::RopeScaling& scaling,
                                 std::int64_t head_width) {
  std::vector<float> divisors;
  if (scaling.kind != ops::RopeScaling::Kind::llama3) return divisors;
  for (std::int64_t i = 0; i < head_width / 2; ++i)
    divisors.push_back(static_cast<float>(ops::rope_frequency(theta, {}, head_width, i) /
                                          ops::rope_frequency(theta, scaling, head_width, i)));
  return divisors;
}

// Between the two wavelengths 1 / divisor = (1 - s) / factor + s, where s is linear in the
// frequency: s = original / (high - low) / wavelength - low / (high - low).
std::optional<ops::RopeScaling> scaling_of_divisors(double theta, std::span<const float> divisors) {
  const auto head_width = 2 * static_cast<std::int64_t>(divisors.size());
  if (divisors.empty()) return {};
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  struct Point {
    double per_wavelength, s;
  };
  std::vector<Point> between;
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const double d = divisors[i];
    if (!(d > 1 + kSame) || !(d < factor * (1 - kSame))) continue;
    const double f = ops::rope_frequency(theta, {}, head_width, static_cast<std::int64_t>(i));
    between.push_back({f / (2 * std::numbers::pi), (1 / d - 1 / factor) / (1 - 1 / factor)});
  }
  if (between.size() < 2) return {};
  const Point &first = between.front(), &last = between.back();
  const double slope = (first.s - last.s) / (first.per_wavelength - last.per_wavelength);
  const double below = slope * first.per_wavelength - first.s;
  if (!(slope > 0) || !(below > 0)) return {};
  ops::RopeScaling scaling{.kind = ops::RopeScaling::Kind::llama3,
                           .factor = meant(factor, 0.5),
                           .original = meant(slope / below, 1),
                           .low = 1,
                           .high = meant(1 + 1 / below, 0.5)};
  const std::vector<float> again = gguf_divisors(theta, scaling, head_width);
  for (std::size_t i = 0; i < divisors.size(); ++i)
    if (!(std::fabs(again[i] - divisors[i]) <= kSame * divisors[i])) return {};
  return scaling;
}

}  // namespace choir
