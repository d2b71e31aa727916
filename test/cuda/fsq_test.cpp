#include "test/support/fsq_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaFsq : public CudaTest {};

TEST_F(CudaFsq, MatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const char* levels : {"8,5,5,5", "4,4,4", "7,2"})
      for (const std::int64_t rows : {1, 33}) FsqCase{dtype, levels, rows, 3}.check(device());
  FsqCase{DType::f32, "8,5,5,5", 3000, 4}.check(device());
}

TEST_F(CudaFsq, IndexThatIsNoneIsNotANumber) {
  HostTensor index = HostTensor::filled(DType::i32, {2, 1}, 1000);
  index.set(1, -1);
  HostTensor codes(DType::f32, {2, 4});
  Mirror mirror(device());
  ops::fsq_codes(stream(), {.levels = ops::FsqLevels::parse("8,5,5,5", "levels"),
                            .indices = mirror.in(index),
                            .codes = mirror.io(codes)});
  mirror.fetch();
  for (std::int64_t i = 0; i < codes.count(); ++i) EXPECT_TRUE(std::isnan(codes[i])) << i;
}

class CudaL1Loss : public CudaTest {};

TEST_F(CudaL1Loss, MatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t width : {1, 33, 640}) L1LossCase{dtype, 4, 7, width}.check(device());
}

}  // namespace
}  // namespace choir::test
