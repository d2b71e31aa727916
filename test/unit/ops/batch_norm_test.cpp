#include "test/support/batch_norm_case.hpp"

namespace choir::test {
namespace {

TEST(BatchNorm, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const bool training : {true, false})
      for (const std::int64_t width : {1, 7, 16, 65})
        for (const std::int64_t frames : {1, 5, 67})
          for (const bool masked : {false, true})
            check_batch_norm(device, {dtype, 5, frames, width, training, masked});
}

}  // namespace
}  // namespace choir::test
