#include "test/support/attention_merge_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaAttentionMerge : public CudaTest {};

TEST_F(CudaAttentionMerge, MatchesTheReferenceTsan) {
  for (const DType dtype : kGpuTypes)
    for (const bool first : {true, false})
      for (const std::int64_t width : {7, 32, 80})
        AttentionMergeCase{dtype, 2, 9, 3, width, first}.check(device());
}

}  // namespace
}  // namespace choir::test
