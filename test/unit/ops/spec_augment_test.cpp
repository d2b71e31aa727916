#include <omp.h>

#include "test/support/feature_case.hpp"
#include "test/support/log_mel_golden.hpp"

namespace choir::test {
namespace {

constexpr PhiloxKey kKey{kGoldenKey[0], kGoldenKey[1]};

/// Ones, masked where the golden masks lie.
template <std::size_t kCount>
HostTensor golden_masked(const GoldenMask (&masks)[kCount], std::int64_t frames) {
  HostTensor x = HostTensor::filled(DType::f32, {1, frames, 80}, 1);
  for (const GoldenMask& mask : masks)
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const std::int64_t at = mask.kind == 0 ? i / 80 : i % 80;
      if (at >= mask.start && at < mask.start + mask.width) x.set(i, 0);
    }
  return x;
}

TEST(SpecAugment, MasksLieWhereAnIndependentPhiloxPutsThem) {
  CpuDevice device;
  const auto compute = [&](const ops::SpecAugment& options, std::int64_t frames, std::int64_t id) {
    return device_masked(device, HostTensor::filled(DType::f32, {1, frames, 80}, 1), options,
                         lengths_of({frames}), ids_of({id}), kKey);
  };
  EXPECT_TRUE(compute({}, 700, 7).same_bits(golden_masked(kMasksOf7, 700)));
  EXPECT_TRUE(compute({.time_masks = 3, .time_width = 5}, 123, (std::int64_t{1} << 35) + 11)
                  .same_bits(golden_masked(kMasksOfLarge, 123)));
}

TEST(SpecAugment, HasTheBitsOfTheReference) {
  CpuDevice device;
  for (const DType dtype : kFeatureTypes)
    for (const std::int64_t bins : {27, 80, 128})
      for (const double width : {0.0, 0.05, 0.999, 1.0, 7.5, 1000.0})
        check_masked(device, dtype, {.time_masks = 4, .time_width = width}, 90, bins,
                     {90, 89, 40, 20, 1, 0}, kKey);
  check_masked(device, DType::f32, {.time_masks = 0, .frequency_masks = 0}, 30, 8, {30, 12}, kKey);
  check_masked(device, DType::f32, {.time_masks = 200, .frequency_masks = 56}, 300, 80, {300, 12},
               kKey);
}

TEST(SpecAugment, DependsOnKeyAndSampleNotOnTheBatch) {
  CpuDevice device;
  const HostTensor ones = HostTensor::filled(DType::f32, {1, 200, 80}, 1),
                   batch = HostTensor::filled(DType::f32, {3, 250, 80}, 1);
  const auto alone = [&](std::int64_t id, PhiloxKey key) {
    return device_masked(device, ones, {}, lengths_of({200}), ids_of({id}), key);
  };
  const HostTensor all =
      device_masked(device, batch, {}, lengths_of({250, 200, 200}), ids_of({1, 5, 9}), kKey);
  const auto row = [&](std::int64_t b) { return all.as<float>() + b * 250 * 80; };
  EXPECT_EQ(std::memcmp(row(1), alone(5, kKey).data(), ones.bytes()), 0);
  EXPECT_EQ(std::memcmp(row(2), alone(9, kKey).data(), ones.bytes()), 0);
  EXPECT_FALSE(alone(5, kKey).same_bits(alone(9, kKey)));
  EXPECT_FALSE(alone(5, kKey).same_bits(alone(5 + (std::int64_t{1} << 32), kKey)));
  EXPECT_FALSE(alone(5, kKey).same_bits(alone(5, {kKey.k0 + 1, kKey.k1})));
}

TEST(SpecAugment, WidthsAndStartsAreUniform) {
  // E[floor(u n)] = (n - 1) / 2 and its variance (n^2 - 1) / 12 for an integer n.
  double width = 0, square = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const Mask mask = frequency_mask({}, kKey, 1, i, 80);
    ASSERT_TRUE(mask.start >= 0 && mask.width >= 0 && mask.start + mask.width <= 80);
    width += static_cast<double>(mask.width);
    square += static_cast<double>(mask.start) / static_cast<double>(80 - mask.width);
  }
  EXPECT_NEAR(width / kDraws, 13, 5 * std::sqrt((27 * 27 - 1) / 12.0 / kDraws));
  // A start is floor(u n): about 1 / (2 n) below u n on average, n = 54 ... 80.
  EXPECT_NEAR(square / kDraws, 0.5 - 0.5 / 66.5, 5 * std::sqrt(1 / 12.0 / kDraws));
}

TEST(SpecAugment, ChecksItsOptions) {
  CpuBench cpu;
  const HostTensor x = HostTensor::filled(DType::f32, {1, 10, 20}, 1), lengths = lengths_of({10}),
                   ids = ids_of({1});
  const auto call = [&](const ops::SpecAugment& options) {
    ops::spec_augment(cpu.stream, options, x, lengths.as<std::int32_t>(), ids.as<std::int64_t>(),
                      kKey);
  };
  EXPECT_THROW(call({}), Error);  // 27 of 20 bins
  EXPECT_THROW(call({.time_masks = -1, .frequency_width = 3}), Error);
  EXPECT_THROW(call({.time_masks = 255, .frequency_width = 3}), Error);
  EXPECT_THROW(call({.time_width = -0.1, .frequency_width = 3}), Error);
  EXPECT_THROW(call({.time_width = std::nan(""), .frequency_width = 3}), Error);
  EXPECT_NO_THROW(call({.frequency_width = 20}));
  EXPECT_NO_THROW(call({.frequency_masks = 0}));
}

}  // namespace
}  // namespace choir::test
