#include "test/support/strided_conv_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaStridedConv : public CudaTest {};

TEST_F(CudaStridedConv, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const bool causal : {false, true})
      for (const std::int64_t channels : {5, 8, 40})
        for (const std::int64_t frames : {1, 2, 9})
          for (const std::int64_t frequencies : {1, 4, 11})
            for (const bool wide : {false, true})
              check_strided_conv(device(), {dtype, 4, frames, frequencies, wide ? channels : 1,
                                            channels, causal, frames != 2, frequencies != 4});
}

TEST_F(CudaStridedConv, AnyAlignmentAndSeveralTiles) {
  for (const DType dtype : kGpuTypes)
    for (const bool wide : {false, true}) {
      check_strided_conv(device(), {dtype, 2, 5, 6, wide ? 16 : 1, 16, false, true, true, 1});
      check_strided_conv(device(), {dtype, 2, 5, 6, wide ? 264 : 1, 264, true, true, true});
    }
}

}  // namespace
}  // namespace choir::test
