#include "test/support/depthwise_conv_case.hpp"

namespace choir::test {
namespace {

TEST(DepthwiseConv, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t taps : {1, 2, 9, 10, 31, 64})
      for (const std::int64_t left : {(taps - 1) / 2, taps - 1, std::int64_t{0}})
        for (const std::int64_t channels : {1, 17, 130})
          for (const std::int64_t frames : {1, 7, 40, 65})
            check_depthwise_conv(device, {dtype, 5, frames, channels, taps, left, frames != 7,
                                          frames == 40 && left > 0, frames != 65});
}

}  // namespace
}  // namespace choir::test
