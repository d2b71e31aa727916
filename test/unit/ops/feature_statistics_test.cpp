#include <omp.h>

#include "test/support/feature_case.hpp"
#include "test/support/log_mel_case.hpp"

namespace choir::test {
namespace {

TEST(NormaliseFeatures, IsWithinTheBoundOfTheReference) {
  CpuDevice device;
  for (const DType dtype : kFeatureTypes)
    for (const std::int64_t bins : {1, 7, 16, 80, 81, 128})
      for (const double mean : {0.0, -9.0, 1000.0}) {
        SCOPED_TRACE(fmt::format("{} bins {} mean {}", name_of(dtype), bins, mean));
        check_normalised(device, HostTensor::normal(dtype, {6, 70, bins}, 1, 2, mean),
                         lengths_of({70, 33, 32, 2, 1, 0}));
      }
  check_normalised(device, HostTensor::normal(DType::f32, {1, 3000, 20}, 1, 1, -12),
                   lengths_of({2999}));
}

TEST(NormaliseFeatures, GivesMeanZeroAndUnbiasedDeviationOne) {
  CpuDevice device;
  const std::int64_t n = 50, bins = 5;
  const HostTensor out = device_normalised(
      device, HostTensor::normal(DType::f64, {1, 60, bins}, 1, 3, 7), lengths_of({n}));
  for (std::int64_t f = 0; f < bins; ++f) {
    double sum = 0, squares = 0;
    for (std::int64_t t = 0; t < n; ++t)
      sum += out[t * bins + f], squares += std::pow(out[t * bins + f], 2);
    EXPECT_NEAR(sum, 0, 1e-12);
    EXPECT_NEAR(squares / static_cast<double>(n - 1), 1, 2e-5);  // s / (s + 1e-5), squared
  }
}

TEST(NormaliseFeatures, OneFrameAndConstantFeaturesGiveZero) {
  CpuDevice device;
  for (const DType dtype : kFeatureTypes) {
    const HostTensor out =
        device_normalised(device, HostTensor::filled(dtype, {2, 9, 80}, -16.5), lengths_of({1, 8}));
    for (std::int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out[i], 0);
  }
}

TEST(NormaliseFeatures, LogMelNormalisedEqualsNumpy) {
  CpuDevice device;
  for (const DType dtype : kFeatureTypes)
    expect_golden(
        device_normalised(device,
                          device_log_mel(device, dtype, {}, Utterances({golden_signal(5000)}, 160)),
                          lengths_of({31})),
        all_of(kNormalised16), dtype == DType::f64 ? 1e-11 : 1e-4);
}

TEST(NormaliseFeatures, BitsDependOnTheUtteranceAlone) {
  CpuDevice device;
  const std::int64_t n = 333, bins = 80, padded = 400;
  const HostTensor x = HostTensor::normal(DType::f32, {1, n, bins}, 9, 2, -8);
  const HostTensor alone = device_normalised(device, x, lengths_of({n}));
  HostTensor batch = HostTensor::normal(DType::f32, {5, padded, bins}, 4);
  for (std::int64_t i = 0; i < x.count(); ++i) batch.set(3 * padded * bins + i, x[i]);
  const int threads = omp_get_max_threads();
  for (const int count : {1, 4}) {
    omp_set_num_threads(count);
    const HostTensor all = device_normalised(device, batch, lengths_of({400, 0, 17, n, 1}));
    EXPECT_EQ(std::memcmp(all.as<float>() + 3 * padded * bins, alone.data(), alone.bytes()), 0);
  }
  omp_set_num_threads(threads);
}

TEST(NormaliseFeatures, ChecksItsTensors) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {2, 3, 4}), lengths = lengths_of({3, 4});
  EXPECT_THROW(ops::normalise_features(cpu.stream, x, lengths.as<std::int32_t>()), Error);
  EXPECT_THROW(ops::normalise_features(cpu.stream, x, nullptr), Error);
  const HostTensor fine = lengths_of({3, 0});
  EXPECT_THROW(ops::normalise_features(cpu.stream, HostTensor(DType::bf16, {2, 3, 4}),
                                       fine.as<std::int32_t>()),
               Error);
  EXPECT_NO_THROW(ops::normalise_features(cpu.stream, x, fine.as<std::int32_t>()));
}

}  // namespace
}  // namespace choir::test
