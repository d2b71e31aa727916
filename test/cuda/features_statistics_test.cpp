#include "test/cuda/cuda_fixture.hpp"
#include "test/support/feature_case.hpp"

namespace choir::test {
namespace {

class CudaNormaliseFeatures : public CudaTest {};

TEST_F(CudaNormaliseFeatures, IsWithinTheBoundOfTheReference) {
  for (const std::int64_t bins : {1, 31, 80})
    for (const double mean : {-9.0, 1000.0}) {
      SCOPED_TRACE(fmt::format("bins {} mean {}", bins, mean));
      check_normalised(device(), HostTensor::normal(DType::f32, {6, 70, bins}, 1, 2, mean),
                       lengths_of({70, 33, 32, 2, 1, 0}));
    }
  check_normalised(device(), HostTensor::normal(DType::f32, {1, 1500, 3}, 1, 1, -12),
                   lengths_of({1499}));
}

TEST_F(CudaNormaliseFeatures, OneFrameAndConstantFeaturesGiveZero) {
  const HostTensor out = device_normalised(
      device(), HostTensor::filled(DType::f32, {2, 9, 80}, -16.5), lengths_of({1, 8}));
  for (std::int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out[i], 0);
}

TEST_F(CudaNormaliseFeatures, BitsDependOnTheUtteranceAlone) {
  const std::int64_t n = 133, bins = 40, padded = 150;
  const HostTensor x = HostTensor::normal(DType::f32, {1, n, bins}, 9, 2, -8);
  const HostTensor alone = device_normalised(device(), x, lengths_of({n}));
  HostTensor batch = HostTensor::normal(DType::f32, {3, padded, bins}, 4);
  for (std::int64_t i = 0; i < x.count(); ++i) batch.set(padded * bins + i, x[i]);
  const HostTensor all = device_normalised(device(), batch, lengths_of({150, n, 0}));
  EXPECT_EQ(std::memcmp(all.as<float>() + padded * bins, alone.data(), alone.bytes()), 0);
}

TEST_F(CudaNormaliseFeatures, BlockTsan) {
  check_normalised(device(), HostTensor::normal(DType::f32, {1, 70, 33}, 1), lengths_of({66}));
}

TEST_F(CudaNormaliseFeatures, RefusesDoubles) {
  EXPECT_THROW(
      device_normalised(device(), HostTensor::normal(DType::f64, {1, 4, 8}, 1), lengths_of({4})),
      Error);
}

}  // namespace
}  // namespace choir::test
