#pragma once
// Normalisation and masks of features against their references, on any device.
#include "kernels/features/features.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

inline HostTensor lengths_of(const std::vector<std::int64_t>& lengths) {
  HostTensor t(DType::i32, {static_cast<std::int64_t>(lengths.size())});
  for (std::size_t b = 0; b < lengths.size(); ++b)
    t.set(static_cast<std::int64_t>(b), static_cast<double>(lengths[b]));
  return t;
}
inline HostTensor ids_of(const std::vector<std::int64_t>& ids) {
  HostTensor t(DType::i64, {static_cast<std::int64_t>(ids.size())});
  std::copy(ids.begin(), ids.end(), t.as<std::int64_t>());
  return t;
}

/// Frames that are not counted are poisoned before the call.
inline HostTensor device_normalised(Device& device, HostTensor x, const HostTensor& lengths) {
  const std::int64_t frames = x.shape()[1], bins = x.shape()[2];
  for (std::int64_t i = 0; i < x.count(); ++i)
    if (static_cast<double>(i / bins % frames) >= lengths[i / (frames * bins)]) x.set(i, NAN);
  Mirror mirror(device);
  ops::normalise_features(Stream(device), mirror.io(x), mirror.in(lengths).as<std::int32_t>());
  mirror.fetch();
  EXPECT_TRUE(x.guard_intact());
  return x;
}

/// With u the unit roundoff and n frames, of which at most k = max(32, n / 32) are summed in the
/// type of x: the mean has an error of at most d = (k + 1) u max |x|, a difference from it d + u |x
/// - mean|, the sum of their squares relatively (k + 4) u and d^2 n / (n - 1) (the sum of squares
/// is least at the mean), its root half of that; both occur once more in the product.
inline void check_normalised(Device& device, const HostTensor& x, const HostTensor& lengths) {
  const HostTensor out = device_normalised(device, x, lengths);
  const HostTensor wide = x.to(DType::f64), exact = wide;
  ref::normalise_features(exact, lengths.as<std::int32_t>());
  const double u = unit_roundoff(x.dtype());
  const std::int64_t frames = x.shape()[1], bins = x.shape()[2];
  for (std::int64_t b = 0; b < x.shape()[0]; ++b)
    for (std::int64_t f = 0; f < bins; ++f) {
      const auto n = static_cast<std::int64_t>(lengths[b]);
      const double* column = wide.as<double>() + b * frames * bins + f;
      double most = 0, mean = 0, squares = 0;
      for (std::int64_t t = 0; t < n; ++t)
        most = std::max(most, std::fabs(column[t * bins])),
        mean += column[t * bins] / static_cast<double>(n);
      for (std::int64_t t = 0; t < n; ++t) squares += std::pow(column[t * bins] - mean, 2);
      const double count = static_cast<double>(n), k = std::max(32.0, count / 32);
      const double deviation = n < 2 ? 0 : std::sqrt(squares / (count - 1));
      const double scale = 1 / (deviation + kStandardDeviationGuard), d = (k + 1) * u * most;
      // The root changes by at most d if the deviation is 0.
      const double spread = n < 2 ? 0
                                  : std::min(2 * d, deviation > 0 ? d * d / deviation : INFINITY) +
                                        (k + 4) * u * deviation;
      for (std::int64_t t = 0; t < frames; ++t) {
        const std::int64_t i = (b * frames + t) * bins + f;
        const double y = std::fabs(exact[i]);
        const double allowed =
            t < n ? (d * scale + y * (spread * scale + 4 * u)) / std::max(0.1, 1 - spread * scale)
                  : 0.0;
        if (!(std::fabs(out[i] - exact[i]) <= allowed)) {
          ADD_FAILURE() << "row " << b << " frame " << t << " bin " << f << ": " << out[i]
                        << " instead of " << exact[i] << ", allowed error " << allowed;
          return;
        }
      }
    }
}

inline HostTensor device_masked(Device& device, HostTensor x, const ops::SpecAugment& options,
                                const HostTensor& lengths, const HostTensor& ids, PhiloxKey key) {
  Mirror mirror(device);
  ops::spec_augment(Stream(device), options, mirror.io(x), mirror.in(lengths).as<std::int32_t>(),
                    mirror.in(ids).as<std::int64_t>(), key);
  mirror.fetch();
  EXPECT_TRUE(x.guard_intact());
  return x;
}

/// Bit for bit; every element that is not masked, including padding, is unchanged.
inline void check_masked(Device& device, DType dtype, const ops::SpecAugment& options,
                         std::int64_t frames, std::int64_t bins,
                         const std::vector<std::int64_t>& lengths, PhiloxKey key) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  std::vector<std::int64_t> ids;
  for (std::int64_t b = 0; b < batch; ++b) ids.push_back((b << 31) + 17 * b);
  const HostTensor x = HostTensor::normal(dtype, {batch, frames, bins}, 3);
  const HostTensor rows = lengths_of(lengths), samples = ids_of(ids);
  HostTensor exact = x.to(DType::f64);
  ref::spec_augment(options, exact, rows.as<std::int32_t>(), samples.as<std::int64_t>(), key);
  EXPECT_TRUE(device_masked(device, x, options, rows, samples, key).same_bits(exact.to(dtype)));
}

}  // namespace choir::test
