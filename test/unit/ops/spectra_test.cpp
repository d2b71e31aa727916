#include "kernels/features/spectra.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "kernels/features/features.hpp"

namespace choir {
namespace {

constexpr std::int64_t kFrames = 19;  // sizes that are no multiple of a vector's lanes

template <class T>
std::vector<T> noise(std::int64_t count) {
  std::vector<T> x(static_cast<std::size_t>(count));
  const PhiloxKey key = philox_key(3, "spectra");
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<T>(2 * uniform01(philox_at(key, i)[0]) - 1);
  return x;
}

/// X[k] of one frame, from the definition.
std::pair<long double, long double> bin_of(const double* frame, std::int64_t points,
                                           std::int64_t k) {
  long double re = 0, im = 0;
  for (std::int64_t n = 0; n < points; ++n) {
    const long double angle = 2 * std::numbers::pi_v<long double> *
                              static_cast<long double>(n * k % points) /
                              static_cast<long double>(points);
    re += frame[n] * std::cos(angle), im -= frame[n] * std::sin(angle);
  }
  return {re, im};
}

TEST(RealTransform, IsTheDefinition) {
  for (const std::int64_t points : {256, 512, 1024}) {
    const ops::RealTransform<double> transform(points);
    const std::int64_t bins = transform.bins();
    const auto frames = noise<double>(kFrames * points);
    std::vector<double> spectra(static_cast<std::size_t>(kFrames * 2 * bins));
    transform.forward(kFrames, frames.data(), spectra.data());
    for (const std::int64_t t : {std::int64_t{0}, kFrames - 1})
      for (std::int64_t k = 0; k < bins; ++k) {
        const auto [re, im] = bin_of(frames.data() + t * points, points, k);
        const double* at = spectra.data() + (t * bins + k) * 2;
        // Each of the log2 N stages rounds sums of at most N numbers below 1.
        const double bound = 1e-16 * 12 * static_cast<double>(points);
        ASSERT_NEAR(at[0], static_cast<double>(re), bound) << points << " " << t << " " << k;
        ASSERT_NEAR(at[1], static_cast<double>(im), bound) << points << " " << t << " " << k;
      }
  }
}

template <class T>
void expect_and_back(double bound) {
  for (const std::int64_t points : {256, 512, 1024}) {
    const ops::RealTransform<T> transform(points);
    const auto frames = noise<T>(kFrames * points);
    std::vector<T> spectra(static_cast<std::size_t>(kFrames * 2 * transform.bins()));
    std::vector<T> back(frames.size());
    transform.forward(kFrames, frames.data(), spectra.data());
    for (std::int64_t t = 0; t < kFrames; ++t) {  // imaginary parts that must be zero are not read
      T* row = spectra.data() + t * 2 * transform.bins();
      row[1] = row[2 * transform.bins() - 1] = T(1e9);
    }
    transform.inverse(kFrames, spectra.data(), back.data());
    for (std::size_t i = 0; i < frames.size(); ++i) ASSERT_NEAR(back[i], frames[i], bound);
    // A frame has the same bits alone and among others.
    std::vector<T> alone(static_cast<std::size_t>(points));
    transform.inverse(1, spectra.data() + 5 * 2 * transform.bins(), alone.data());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), back.begin() + 5 * points));
  }
}

TEST(RealTransform, ComesBack) {
  expect_and_back<double>(1e-14);
  expect_and_back<float>(1e-5);
}

TEST(RealTransform, OtherSizesAreRefused) {
  EXPECT_THROW(ops::RealTransform<float>(400), DeckError);
  EXPECT_THROW(ops::RealTransform<double>(0), DeckError);
}

TEST(MelBands, AreTheFiltersOfTheReference) {
  ops::MelOptions options;
  options.window = 512;
  const std::vector<double> filters = ref::mel_filters(options);
  const auto bands = ops::mel_bands(options);
  ASSERT_EQ(std::ssize(bands), options.mels);
  for (std::int64_t m = 0; m < options.mels; ++m)
    for (std::int64_t k = 0; k < 257; ++k) {
      const auto& band = bands[static_cast<std::size_t>(m)];
      const bool inside = k >= band.first && k < band.first + std::ssize(band.weights);
      EXPECT_NEAR(inside ? band.weights[static_cast<std::size_t>(k - band.first)] : 0,
                  filters[static_cast<std::size_t>(m * 257 + k)], 1e-14);
    }
  EXPECT_EQ(ops::mel_window_lead(options), 256);
  EXPECT_EQ(std::ssize(ops::mel_window(options)), 512);
}

}  // namespace
}  // namespace choir
