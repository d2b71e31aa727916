#include <algorithm>
#include <cmath>

#include "kernels/fsq/fsq.hpp"

namespace choir::ref {
namespace {

/// Calls f(element, its levels) with constants computed from their definitions for each element.
template <class F>
void for_numbers(const ops::FsqLevels& levels, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i)
    f(i, static_cast<double>(levels.of[static_cast<std::size_t>(i % levels.count)]));
}

double squash_scale(double levels) {
  return (levels - 1) / 2 * (1 - 1e-3);
}
double squash_offset(double levels) {
  return std::fmod(levels, 2) == 0 ? 0.5 : 0;
}
double squashed(double x, double levels) {
  return std::tanh(x + std::tan(squash_offset(levels) / squash_scale(levels)));
}

}  // namespace

void fsq_forward(const ops::FsqForward& args) {
  for_numbers(args.levels, args.in.count(), [&](std::int64_t i, double levels) {
    const double y =
        squash_scale(levels) * squashed(args.in.as<double>()[i], levels) - squash_offset(levels);
    args.codes.as<double>()[i] = std::rint(y) / std::floor(levels / 2);
  });
}

void fsq_backward(const ops::FsqBackward& args) {
  for_numbers(args.levels, args.in.count(), [&](std::int64_t i, double levels) {
    const double t = squashed(args.in.as<double>()[i], levels);
    args.d_in.as<double>()[i] =
        args.d_codes.as<double>()[i] * squash_scale(levels) * (1 - t * t) / std::floor(levels / 2);
  });
}

void fsq_indices(const ops::FsqIndices& args) {
  const int count = args.levels.count;
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int64_t index = 0, base = 1;
    for (int d = 0; d < count; ++d) {
      const std::int32_t levels = args.levels.of[static_cast<std::size_t>(d)];
      const double q = args.codes.as<double>()[v * count + d] * (levels / 2);
      const auto n = static_cast<std::int64_t>(std::rint(q)) + levels / 2;
      index += std::clamp<std::int64_t>(n, 0, levels - 1) * base;
      base *= levels;
    }
    args.indices.as<std::int32_t>()[v] = static_cast<std::int32_t>(index);
  }
}

void fsq_codes(const ops::FsqCodes& args) {
  const int count = args.levels.count;
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t left = args.indices.as<std::int32_t>()[v];
    for (int d = 0; d < count; ++d) {
      const std::int32_t levels = args.levels.of[static_cast<std::size_t>(d)];
      args.codes.as<double>()[v * count + d] =
          static_cast<double>(left % levels - levels / 2) / (levels / 2);
      left /= levels;
    }
  }
}

}  // namespace choir::ref
