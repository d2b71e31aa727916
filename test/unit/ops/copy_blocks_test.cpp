#include "choir/core/error.hpp"
#include "src/device/null_device.hpp"
#include "test/support/copy_blocks_case.hpp"

namespace choir::test {
namespace {

TEST(CopyBlocks, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 7, 16, 64})
      for (const std::int64_t copies : {1, 2, 3, 6})
        CopyBlocksCase{dtype, 9, 3, 2, width, copies, 5}.check(cpu);
  CopyBlocksCase{DType::bf16, 700, 4, 1, 64, 4}.check(cpu);  // by several threads
}

TEST(CopyBlocks, CountsItsTraffic) {
  CpuDevice cpu;
  NullDevice null;
  WorkCounter work;
  ops::copy_blocks(Stream(null, &work),
                   {.dtype = DType::bf16, .rows = 10, .blocks = 3, .width = 8, .terms = 2});
  EXPECT_EQ(work.bytes, 10 * 3 * 8 * 3 * 2);
  EXPECT_EQ(work.flops, 10 * 3 * 8);
}

TEST(CopyBlocks, RefusesNoTermsAndNoGroups) {
  CpuBench cpu;
  EXPECT_THROW(ops::copy_blocks(cpu.stream, {.terms = 0}), Error);
  EXPECT_THROW(ops::copy_blocks(cpu.stream, {.from = {.group = 0}}), Error);
}

}  // namespace
}  // namespace choir::test
