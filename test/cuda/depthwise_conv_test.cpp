#include "test/support/depthwise_conv_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaDepthwiseConv : public CudaTest {};

TEST_F(CudaDepthwiseConv, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t taps : {1, 9, 20})
      for (const std::int64_t left : {(taps - 1) / 2, taps - 1})
        for (const std::int64_t channels : {5, 40})
          for (const std::int64_t frames : {1, 7, 70})
            check_depthwise_conv(device(), {dtype, 4, frames, channels, taps, left, frames != 7,
                                            frames == 70 && left > 0, frames != 1});
}

TEST_F(CudaDepthwiseConv, AnyAlignmentSeveralTilesAndTheWidest) {
  for (const DType dtype : kGpuTypes) {
    check_depthwise_conv(device(), {dtype, 2, 9, 16, 9, 4, true, false, true, 1});
    check_depthwise_conv(device(), {dtype, 2, 9, 264, 9, 8});
    check_depthwise_conv(device(), {dtype, 2, 66, 8, ops::kWidestDepthwise, 31});
  }
}

}  // namespace
}  // namespace choir::test
