#include "test/support/copy_blocks_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaCopyBlocks : public CudaTest {};

TEST_F(CudaCopyBlocks, MatchesTheReference) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 6, 7, 16, 64})
      for (const std::int64_t copies : {1, 2, 3, 6})
        for (const std::int64_t gap : {0, 3, 8})
          CopyBlocksCase{dtype, 9, 3, 2, width, copies, gap}.check(device());
}

TEST_F(CudaCopyBlocks, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const int skew : {1, 2, 4})
      for (const std::int64_t copies : {1, 4})
        CopyBlocksCase{dtype, 5, 4, 1, 16, copies, 0, skew}.check(device());
}

TEST_F(CudaCopyBlocks, ManyBlocksTsan) {
  CopyBlocksCase{DType::bf16, 70, 4, 2, 64, 2}.check(device());
  CopyBlocksCase{DType::bf16, 70, 4, 2, 64, 1}.check(device());
}

}  // namespace
}  // namespace choir::test
