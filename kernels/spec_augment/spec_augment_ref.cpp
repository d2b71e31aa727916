#include "kernels/spec_augment/spec_augment.hpp"

#include <algorithm>

namespace choir::ref {
namespace {

/// True if mask i of a kind covers position `at` of `extent`.
bool covers(PhiloxKey key, std::int64_t i, std::uint32_t kind, std::int64_t sample, double widest,
            std::int64_t extent, std::int64_t at) {
  const PhiloxBlock u = philox(
      key, {static_cast<std::uint32_t>(i), kind, static_cast<std::uint32_t>(sample & 0xffffffff),
            static_cast<std::uint32_t>(sample >> 32)});
  const double width = std::floor(u[0] / 4294967296.0 * widest);
  const double start = std::floor(u[1] / 4294967296.0 * (static_cast<double>(extent) - width));
  return static_cast<double>(at) >= start && static_cast<double>(at) < start + width;
}

}  // namespace

void spec_augment(const ops::SpecAugment& o, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::int64_t b = i / (frames * bins), t = i / bins % frames, f = i % bins;
    const std::int64_t length = lengths[b];
    if (t >= length) continue;
    const double wide =
        o.time_width < 1 ? o.time_width * static_cast<double>(length) : o.time_width;
    bool masked = false;
    for (std::int64_t m = 0; m < o.time_masks; ++m)
      masked |=
          covers(key, m, 0, sample_ids[b], std::min(wide, static_cast<double>(length)), length, t);
    for (std::int64_t m = 0; m < o.frequency_masks; ++m)
      masked |= covers(key, m, 1, sample_ids[b], static_cast<double>(o.frequency_width), bins, f);
    if (masked) x.as<double>()[i] = 0;
  }
}

}  // namespace choir::ref
