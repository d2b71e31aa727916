#include "test/support/relative_attention_case.hpp"

#include "kernels/attention/attention.hpp"
#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

struct BackwardCase {
  DType dtype;
  std::int64_t batch, heads, tokens, width;
  bool ragged = true;
};

class CudaRelativeAttention : public CudaTest {
 protected:
  /// Backward of the same call in one kernel, and in those of attention and of unshift_scores(),
  /// whose sums have the same order: all gradients have the same values.
  void check_backward(const BackwardCase& c) {
    SCOPED_TRACE(fmt::format("{} B {} H {} T {} D {}", name_of(c.dtype), c.batch, c.heads, c.tokens,
                             c.width));
    const std::int64_t all = c.heads * c.width, rows = c.batch * c.tokens,
                       distances = (2 * c.tokens + 6) / 8 * 8, matrix = c.tokens * distances;
    const HostTensor qkv = HostTensor::normal(c.dtype, {rows, 3 * all}, 1),
                     d_out = HostTensor::normal(c.dtype, {rows, all}, 3);
    HostTensor scores = HostTensor::normal(c.dtype, {c.heads, c.batch, c.tokens, distances}, 2);
    if (c.tokens > 9) scores.set(matrix + 3, -INFINITY);  // hides a key of one query
    HostTensor d_qkv(c.dtype, {rows, 3 * all}), expected = d_qkv, d_scores(c.dtype, scores.shape()),
                                                expected_scores = d_scores;
    HostTensor lengths(DType::i32, {c.batch});
    for (std::int64_t b = 0; b < c.batch; ++b)
      lengths.set(b, static_cast<double>(c.ragged ? c.tokens * (c.batch - b) / c.batch : c.tokens));
    HostTensor out(c.dtype, {rows, all}), lse(DType::f32, {c.batch, c.heads, c.tokens});
    HostTensor d_bias(c.dtype, {c.batch, c.heads, c.tokens, c.tokens});
    Mirror mirror(device());
    const auto heads = [&](const TensorView& x, std::int64_t first) {
      auto* const data =
          static_cast<std::byte*>(x.data) + static_cast<std::size_t>(first) * size_of(x.dtype);
      return ops::AttentionOperand{.data = data,
                                   .batch_stride = c.tokens * x.shape.back(),
                                   .position_stride = x.shape.back()};
    };
    const TensorView in = mirror.in(qkv), bias = mirror.in(scores), y = mirror.io(out);
    const ops::AttentionProblem problem{.batch = c.batch,
                                        .heads = c.heads,
                                        .kv_heads = c.heads,
                                        .head_width = c.width,
                                        .queries = c.tokens,
                                        .keys = c.tokens,
                                        .causal = false,
                                        .scale = 0.125,
                                        .dtype = c.dtype,
                                        .lengths = mirror.in(lengths).as<std::int32_t>(),
                                        .biased = true,
                                        .implementation = ops::AttentionImplementation::own};
    const auto workspace = [&](bool backward) {
      return mirror.workspace(ops::attention_workspace(stream(), problem, backward));
    };
    ops::AttentionForward f{.problem = problem, .q = heads(in, 0), .k = heads(in, all)};
    f.v = heads(in, 2 * all), f.out = heads(y, 0), f.log_sum_exp = mirror.io(lse);
    f.workspace = workspace(false);
    f.bias = {.data = static_cast<const std::byte*>(bias.data) +
                      static_cast<std::size_t>(c.tokens - 1) * size_of(c.dtype),
              .batch_stride = matrix,
              .head_stride = c.batch * matrix,
              .query_stride = distances - 1};
    ops::attention_forward(stream(), f);
    ops::AttentionBackward b{.problem = problem, .q = f.q, .k = f.k, .v = f.v, .out = f.out};
    b.d_out = heads(mirror.in(d_out), 0), b.log_sum_exp = f.log_sum_exp, b.bias = f.bias;
    for (const bool one : {false, true}) {
      const TensorView to = mirror.io(one ? d_qkv : expected),
                       d = mirror.io(one ? d_scores : expected_scores);
      b.d_q = heads(to, 0), b.d_k = heads(to, all), b.d_v = heads(to, 2 * all);
      b.workspace = workspace(true);
      b.d_bias = one ? TensorView{} : mirror.io(d_bias);
      if (one) {
        ASSERT_TRUE(ops::relative_backward_is_one(stream(), problem));
        ops::relative_attention_backward(stream(), b, d);
      } else {
        ops::attention_backward(stream(), b);
        ops::unshift_scores(stream(), b.d_bias, d);
      }
    }
    mirror.fetch();
    EXPECT_TRUE(d_qkv.same_bits(expected)) << "d_q, d_k or d_v";
    // Pairs that a length hides are zeros of either sign.
    for (std::int64_t i = 0; i < d_scores.count(); ++i)
      ASSERT_EQ(d_scores[i], expected_scores[i]) << "d_scores " << i;
    EXPECT_TRUE(d_scores.guard_intact());
  }
};

TEST_F(CudaRelativeAttention, BackwardInOneKernel) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t tokens : {1, 31, 32, 70}) check_backward({dtype, 2, 3, tokens, 64});
    check_backward({dtype, 3, 1, 45, 40});
    check_backward({dtype, 1, 1, 256, 64});
  }
}

TEST_F(CudaRelativeAttention, BackwardTsan) {
  check_backward({DType::bf16, 1, 1, 40, 64});
}

TEST_F(CudaRelativeAttention, Positions) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t tokens : {1, 65}) check_relative_positions(device(), dtype, tokens, 44);
}

TEST_F(CudaRelativeAttention, QueriesAndTheirGradients) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {22, 24})  // one by one, and whole packs
      for (const std::int64_t rows : {1, 50})
        check_relative_queries(device(), dtype, rows, 3, width);
}

TEST_F(CudaRelativeAttention, ScoresAreUnshiftedAndMasked) {
  for (const DType dtype : kGpuTypes)
    for (const ops::AttentionContext& context : kContexts)
      check_scores(device(), dtype, 2, 3, 9, context);
  // Rows of whole packs, longer than a warp reads at once, at every shift of their source.
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t tokens : {1, 5, 9, 140})
      check_scores(device(), dtype, 2, tokens > 9 ? 1 : 3, tokens, {}, 7 - (2 * tokens - 2) % 8);
}

TEST_F(CudaRelativeAttention, SplitNorm) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {17, 44})
      for (const ops::Norm kind : {ops::Norm::layernorm, ops::Norm::rmsnorm})
        check_split_norm(device(), dtype, 21, width, 2, kind);
}

TEST_F(CudaRelativeAttention, StochasticDepth) {
  for (const DType dtype : kGpuTypes) check_stochastic_depth(device(), dtype, 33);
}

}  // namespace
}  // namespace choir::test
