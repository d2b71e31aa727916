#include "test/support/strided_conv_case.hpp"

namespace choir::test {
namespace {

TEST(StridedConv, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const bool causal : {false, true})
      for (const bool relu : {false, true})
        for (const std::int64_t channels : {1, 7, 16, 33, 300})
          for (const std::int64_t frames : {1, 2, 9})
            for (const std::int64_t frequencies : {1, 4, 5}) {
              StridedConvCase c{dtype, 5, frames, frequencies, 1, channels, causal, relu};
              check_strided_conv(device, c);
              c.in_channels = channels;
              c.masked = frequencies != 5;
              check_strided_conv(device, c);
            }
}

}  // namespace
}  // namespace choir::test
