#include "test/support/batch_norm_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaBatchNorm : public CudaTest {};

TEST_F(CudaBatchNorm, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const bool training : {true, false})
      for (const std::int64_t width : {1, 8, 65, 264})
        for (const std::int64_t frames : {1, 5, 67})
          for (const bool masked : {false, true})
            check_batch_norm(device(), {dtype, 4, frames, width, training, masked});
}

TEST_F(CudaBatchNorm, MoreBlocksThanAreJoinedAtATime) {
  for (const DType dtype : kGpuTypes)
    for (const bool masked : {false, true})
      check_batch_norm(device(), {dtype, 3, 200, 40, true, masked, 30});
}

TEST_F(CudaBatchNorm, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    check_batch_norm(device(), {dtype, 3, 9, 16, true, true, 0.5, 1});
}

}  // namespace
}  // namespace choir::test
