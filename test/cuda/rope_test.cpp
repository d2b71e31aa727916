#include "test/support/rope_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

using ops::RopePairing;

class CudaRope : public CudaTest {};

constexpr RopePairing kPairings[] = {RopePairing::half_split, RopePairing::interleaved};

TEST_F(CudaRope, MatchesTheReferenceAndLeavesOtherFeaturesAlone) {
  for (const DType dtype : kGpuTypes)
    for (const RopePairing pairing : kPairings)
      for (const std::int64_t width : {2, 6, 8, 16, 32, 34, 64, 128})
        for (const std::int64_t others : {0, 16, 11})
          check_rope(device(), dtype, pairing, width, others);
}

TEST_F(CudaRope, OnlyTheFirstFeaturesOfAHeadRotate) {
  for (const DType dtype : kGpuTypes)
    for (const RopePairing pairing : kPairings)
      for (const auto& [width, rotated] : {std::pair{16, 4}, {7, 6}, {80, 32}, {128, 96}, {36, 32}})
        for (const std::int64_t on_device : {0, 2})
          check_rope(device(), dtype, pairing, width, 8, 0, ops::kNoPositionEnd, on_device,
                     rotated);
}

TEST_F(CudaRope, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const RopePairing pairing : kPairings)
      for (const int skew : {1, 2, 4}) check_rope(device(), dtype, pairing, 64, 8, skew);
}

TEST_F(CudaRope, PaddingNeedsNoRowOfTheTable) {
  for (const std::int64_t end : {8, 7, 4, 3, 2})
    for (const RopePairing pairing : kPairings)
      check_rope(device(), DType::bf16, pairing, 32, 8, 0, end);
}

TEST_F(CudaRope, TheDeviceKnowsThePosition) {
  for (const DType dtype : kGpuTypes)
    for (const RopePairing pairing : kPairings)
      check_rope(device(), dtype, pairing, 32, 8, 0, ops::kNoPositionEnd, 2);
}

TEST_F(CudaRope, TheTableHasTheBitsOfTheCpu) {
  CpuBench cpu;
  HostTensor here(DType::f32, {300, 22}), there(DType::f32, {300, 22});
  ops::rope_table(cpu.stream, 500000.0, here);
  Mirror mirror(device());
  ops::rope_table(stream(), 500000.0, mirror.io(there));
  mirror.fetch();
  EXPECT_TRUE(here.same_bits(there));
}

}  // namespace
}  // namespace choir::test
