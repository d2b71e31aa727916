#include "test/cuda/cuda_fixture.hpp"
#include "test/support/feature_case.hpp"

namespace choir::test {
namespace {

class CudaSpecAugment : public CudaTest {};

TEST_F(CudaSpecAugment, HasTheBitsOfTheReference) {
  for (const std::int64_t bins : {27, 80})
    for (const double width : {0.0, 0.05, 0.999, 1.0, 7.5, 1000.0})
      check_masked(device(), DType::f32, {.time_masks = 4, .time_width = width}, 90, bins,
                   {90, 89, 40, 20, 1, 0}, {1, 2});
  check_masked(device(), DType::f32, {.time_masks = 0, .frequency_masks = 0}, 30, 8, {30, 12},
               {1, 2});
  check_masked(device(), DType::f32, {.time_masks = 200, .frequency_masks = 56}, 300, 80, {300, 12},
               {3, 4});
}

TEST_F(CudaSpecAugment, HasTheBitsOfTheCpu) {
  CpuDevice cpu;
  const HostTensor x = HostTensor::normal(DType::f32, {2, 700, 80}, 3);
  const HostTensor lengths = lengths_of({700, 699}), ids = ids_of({7, std::int64_t{1} << 40});
  EXPECT_TRUE(device_masked(device(), x, {}, lengths, ids, {5, 6})
                  .same_bits(device_masked(cpu, x, {}, lengths, ids, {5, 6})));
}

TEST_F(CudaSpecAugment, MasksTsan) {
  check_masked(device(), DType::f32, {.time_masks = 3, .time_width = 9}, 70, 40, {70, 66}, {1, 2});
}

}  // namespace
}  // namespace choir::test
