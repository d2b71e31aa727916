// Attention by our own kernels against the naive reference in f64.
#include "test/cuda/attention_fixture.hpp"

#include <cstdlib>

namespace choir::test {
namespace {

constexpr std::int64_t kGridWidths[] = {4, 20, 32, 40, 64, 80, 128, 256};

/// Every head width with every pair of lengths; types, heads and features take turns so that each
/// is combined with each.
class CudaAttentionGrid : public CudaAttention, public testing::WithParamInterface<std::size_t> {};

TEST_P(CudaAttentionGrid, EveryPairOfLengths) {
  const std::int64_t lengths[] = {1, 17, 64, 65, 130};
  std::size_t turn = GetParam() * std::size(lengths) * std::size(lengths);
  for (const std::int64_t queries : lengths)
    for (const std::int64_t keys : lengths) {
      AttentionCase c{.batch = 2,
                      .heads = 2,
                      .kv_heads = 1 + static_cast<std::int64_t>(turn % 2),
                      .width = kGridWidths[GetParam()],
                      .queries = queries,
                      .keys = keys,
                      .causal = keys >= queries && turn % 5 < 3,
                      .dtype = kAttentionTypes[turn % 3],
                      .bias = static_cast<BiasKind>(turn % 4)};
      if (turn % 7 < 3)
        c.lengths = {static_cast<std::int32_t>(keys), static_cast<std::int32_t>(keys / 2)};
      compare(c);
      ++turn;
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, CudaAttentionGrid,
                         testing::Range(std::size_t{0}, std::size(kGridWidths)));

TEST_F(CudaAttention, WithoutStatistics) {
  for (const DType type : kAttentionTypes) {
    const AttentionCase c{.queries = 20, .keys = 20, .dtype = type};
    AttentionTensors t(c, 1);
    const AttentionTensors both = computed(c);
    const OnDevice tensors(device(), t, c);
    tensors.forward(stream(), false);
    stream().synchronize();
    tensors.copy_to(t);
    EXPECT_TRUE(t.out.same_bits(both.out)) << name_of(c);
    for (std::int64_t i = 0; i < t.log_sum_exp.count(); ++i)
      ASSERT_TRUE(std::isnan(t.log_sum_exp[i]));
  }
}

TEST_F(CudaAttention, EveryHeadWidth) {
  for (const std::int64_t d : {4, 20, 32, 40, 64, 80, 128, 136, 256})
    over_types({.batch = 1, .heads = 2, .kv_heads = 1, .width = d, .queries = 65, .keys = 65});
}

TEST_F(CudaAttention, EveryLength) {
  for (const std::int64_t t : {1, 17, 64, 130})
    for (const bool causal : {true, false})
      over_types({.batch = 1,
                  .heads = 1,
                  .kv_heads = 1,
                  .width = 32,
                  .queries = t,
                  .keys = t,
                  .causal = causal});
}

TEST_F(CudaAttention, OddWidthsAndAddresses) {
  over_types({.batch = 2, .heads = 3, .kv_heads = 1, .width = 33, .queries = 17, .keys = 40});
  for (const DType type : kAttentionTypes)
    for (const BiasKind bias : {BiasKind::none, BiasKind::full})
      compare({.batch = 1,
               .heads = 1,
               .kv_heads = 1,
               .width = 128,
               .queries = 30,
               .keys = 70,
               .dtype = type,
               .bias = bias},
              1);
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 255,
           .queries = 20,
           .keys = 70,
           .dtype = DType::bf16},
          1);
}

TEST_F(CudaAttention, GroupedQueries) {
  for (const std::int64_t kv : {1, 2, 4})
    over_types({.batch = 2, .heads = 4, .kv_heads = kv, .width = 16, .queries = 70, .keys = 70});
}

TEST_F(CudaAttention, QueriesAgainstACache) {
  for (const std::int64_t keys : {1, 33, 130})
    over_types({.batch = 2, .heads = 2, .kv_heads = 1, .width = 64, .queries = 1, .keys = keys});
  over_types({.batch = 1, .heads = 1, .kv_heads = 1, .width = 32, .queries = 19, .keys = 150});
  over_types({.batch = 1,
              .heads = 1,
              .kv_heads = 1,
              .width = 32,
              .queries = 140,
              .keys = 9,
              .causal = false});
}

TEST_F(CudaAttention, SoftCap) {
  for (const std::int64_t width : {24, 64, 96, 128, 33, 256})
    over_types({.batch = 3,
                .heads = 1,
                .kv_heads = 1,
                .width = width,
                .queries = 19,
                .keys = 70,
                .lengths = {70, 20, 0},
                .window = 9,
                .softcap = 0.5});
  over_types({.batch = 1,
              .heads = 2,
              .kv_heads = 1,
              .width = 64,
              .queries = 140,
              .keys = 140,
              .softcap = 3});
}

/// The attention of Gemma 2: heads of 256 in groups, a soft cap of 50 and a scale of its own, in
/// full layers and in layers with a window.
TEST_F(CudaAttention, GemmaTwo) {
  for (const std::int64_t window : {0, 64})
    compare({.batch = 1,
             .heads = 2,
             .kv_heads = 1,
             .width = 256,
             .queries = 150,
             .keys = 150,
             .dtype = DType::bf16,
             .window = window,
             .softcap = 50});
}

// Windows from one key to one that hides nothing; with and without a cache, grouped, ragged, and
// longer than the blocks of keys and queries.
TEST_F(CudaAttention, SlidingWindow) {
  for (const std::int64_t window : {1, 31, 64, 129}) {
    over_types({.batch = 2,
                .heads = 4,
                .kv_heads = 2,
                .width = 24,
                .queries = 150,
                .keys = 150,
                .window = window});
    over_types({.batch = 2,
                .heads = 2,
                .kv_heads = 1,
                .width = 33,
                .queries = 19,
                .keys = 175,
                .lengths = {175, 170},
                .window = window});
    over_types({.batch = 1,
                .heads = 1,
                .kv_heads = 1,
                .width = 16,
                .queries = 1,
                .keys = 90,
                .window = window});
  }
}

// Borders on and beside those of the blocks of keys and queries, documents of one token; fewer
// borders than keys, as in batches with padding at the end; and documents in a window.
TEST_F(CudaAttention, Documents) {
  const std::vector<std::int64_t> starts{0, 1, 2, 31, 32, 33, 64, 100, 129, 149};
  over_types({.batch = 2,
              .heads = 4,
              .kv_heads = 2,
              .width = 24,
              .queries = 150,
              .keys = 150,
              .begins = documents(2, 150, starts)});
  over_types({.batch = 2,
              .heads = 2,
              .kv_heads = 1,
              .width = 33,
              .queries = 19,
              .keys = 175,
              .lengths = {175, 170},
              .begins = documents(2, 170, {40, 160, 165})});
  over_types({.batch = 2,
              .heads = 2,
              .kv_heads = 2,
              .width = 64,
              .queries = 140,
              .keys = 140,
              .window = 9,
              .begins = documents(2, 140, {5, 70, 71, 130})});
}

TEST_F(CudaAttention, RaggedLengths) {
  for (const bool causal : {true, false})
    over_types({.batch = 5,
                .heads = 2,
                .kv_heads = 1,
                .width = 16,
                .queries = 70,
                .keys = 70,
                .causal = causal,
                .lengths = {70, 33, 1, 0, 64}});
}

TEST_F(CudaAttention, KeysBeyondTheLengthAreNeverUsed) {
  for (const DType type : kAttentionTypes)
    for (const std::int64_t width : {20, 32}) {
      const AttentionCase c{.batch = 2,
                            .heads = 1,
                            .kv_heads = 1,
                            .width = width,
                            .queries = 20,
                            .keys = 40,
                            .causal = false,
                            .dtype = type,
                            .lengths = {17, 33}};
      const AttentionTensors clean(c, 1);
      AttentionTensors dirty(c, 1);
      const std::int64_t row = dirty.kv.shape().back(), capacity = dirty.kv.shape()[1];
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t i = c.lengths[static_cast<std::size_t>(b)] * row; i < capacity * row; ++i)
          dirty.kv.set(b * capacity * row + i, NAN);
      const AttentionTensors a = computed(c, clean), b = computed(c, dirty);
      EXPECT_TRUE(a.out.same_bits(b.out) && a.d_q.same_bits(b.d_q)) << name_of(c);
      EXPECT_TRUE(a.d_kv.same_bits(b.d_kv)) << name_of(c);
    }
}

/// Scores that rise from key to key by far more than the slack of the running maximum.

TEST_F(CudaAttention, RepeatsBitwise) {
  for (const DType type : kAttentionTypes) {
    const AttentionCase c{.batch = 1,
                          .heads = 4,
                          .kv_heads = 2,
                          .width = 64,
                          .queries = 140,
                          .keys = 140,
                          .dtype = type};
    const AttentionTensors first = computed(c), second = computed(c);
    EXPECT_TRUE(first.out.same_bits(second.out) && first.d_q.same_bits(second.d_q)) << name_of(c);
    EXPECT_TRUE(first.log_sum_exp.same_bits(second.log_sum_exp)) << name_of(c);
  }
}

/// (L(x + hu) - L(x - hu)) / 2h with L = <d_out, out> in f32: its error is h^2 / 6 times a third

/// derivative of order one (4e-5) and the roundoff of L, of |d_out| |out| terms, over h (2e-5).

/// The calls of GPT training, which kernels of sm_90a compute if there are any: lengths around the
/// tiles of 64 and 128, rings that are reused, windows and documents; widths and types take turns.
TEST_F(CudaAttention, WholeTiles) {
  const AttentionCase shape{
      .batch = 1, .heads = 2, .kv_heads = 1, .width = 64, .dtype = DType::f16};
  const auto turned = [&](std::int64_t queries, std::int64_t keys, bool other) {
    AttentionCase c = shape;
    c.queries = queries, c.keys = keys;
    if (other) c.width = 128, c.dtype = DType::bf16;
    return c;
  };
  for (const bool other : {false, true}) {
    AttentionCase c = turned(200, 200, other);
    compare(c);
    c = turned(65, 400, !other), c.causal = other, c.batch = 2, c.heads = 1;
    compare(c);
    c = turned(210, 210, other), c.heads = 1, c.window = 70;
    compare(c);
    c = turned(200, 200, !other), c.heads = 1, c.batch = 2;
    c.begins = documents(2, 200, {64, 65, 130, 190});
    compare(c);
  }
}

/// The same calls by the kernels for all GPUs; on a real GPU by the kernels that it has.
class CudaAttentionBeforeHopper : public CudaAttention {
 protected:
  void SetUp() override {
    ::setenv("HOST_CUDA_CAPABILITY", "80", 1);
    CudaAttention::SetUp();
  }
  void TearDown() override { ::unsetenv("HOST_CUDA_CAPABILITY"); }
};

TEST_F(CudaAttentionBeforeHopper, WholeTiles) {
  for (const std::int64_t width : {64, 128})
    compare({.batch = 1,
             .heads = 2,
             .kv_heads = 1,
             .width = width,
             .queries = 140,
             .keys = 140,
             .dtype = DType::bf16});
}

/// For the thread sanitizer: a ring of tiles that is reused.
TEST_F(CudaAttention, WarpGroupsTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 64,
           .queries = 70,
           .keys = 650,
           .causal = false,
           .dtype = DType::bf16});
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 128,
           .queries = 40,
           .keys = 140,
           .dtype = DType::bf16});
}

/// For the thread sanitizer: wide heads, whose dK and dV are kernels of their own.
TEST_F(CudaAttention, WideHeadsTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 136,
           .queries = 20,
           .keys = 70,
           .dtype = DType::bf16});
}

/// For the thread sanitizer: several tiles of queries and of keys, one small width of each kind.
TEST_F(CudaAttention, TensorCoresTsan) {
  compare({.batch = 1,
           .heads = 2,
           .kv_heads = 1,
           .width = 32,
           .queries = 140,
           .keys = 140,
           .causal = false,
           .dtype = DType::bf16});
}

TEST_F(CudaAttention, SinglesTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 4,
           .queries = 70,
           .keys = 140,
           .dtype = DType::bf16});
}

TEST_F(CudaAttention, ExactTsan) {
  compare({.batch = 1,
           .heads = 2,
           .kv_heads = 1,
           .width = 8,
           .queries = 70,
           .keys = 140,
           .bias = BiasKind::shared});
}

TEST_F(CudaAttention, OneQueryTsan) {
  compare({.batch = 1,
           .heads = 2,
           .kv_heads = 1,
           .width = 32,
           .queries = 1,
           .keys = 40,
           .dtype = DType::bf16});
}

TEST_F(CudaAttention, RefusesWhatItHasNoKernelFor) {
  const AttentionTensors exact({.dtype = DType::f64}, 1);
  EXPECT_THROW(ops::attention_workspace(stream(), exact.problem(), false), DeckError);
}

}  // namespace
}  // namespace choir::test
