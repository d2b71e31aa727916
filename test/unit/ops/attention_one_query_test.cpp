#include "kernels/attention/attention.hpp"
#include "test/unit/ops/attention_case.hpp"

namespace choir::test {
namespace {

TEST(AttentionOneQuery, GivesTheSameBitsOnAnyNumberOfThreads) {
  const AttentionCase c{.batch = 2, .heads = 6, .kv_heads = 3, .queries = 1, .keys = 700};
  const AttentionTensors alone(c, 1);
  run_forward(AttentionKernel::simd, alone, 1);
  for (const int threads : {2, 3, 5}) {
    const AttentionTensors shared(c, 1);
    run_forward(AttentionKernel::simd, shared, threads);
    EXPECT_TRUE(alone.out.same_bits(shared.out) && alone.log_sum_exp.same_bits(shared.log_sum_exp));
  }
}

// A growing cache is planned with its full size.
TEST(AttentionOneQuery, MoreKeysNeedNoLessMemory) {
  ops::AttentionProblem p{.batch = 1, .heads = 4, .kv_heads = 2, .head_width = 64, .queries = 1};
  std::int64_t before = 0;
  for (p.keys = 1; p.keys <= 9000; ++p.keys) {
    const std::int64_t bytes = attention_workspace_cpu(AttentionKernel::simd, p, false, 2);
    ASSERT_GE(bytes, before) << p.keys << " keys";
    before = bytes;
  }
}

}  // namespace
}  // namespace choir::test
