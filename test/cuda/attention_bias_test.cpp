// Tests of attention with an additive bias, its gradient, and gradients by finite differences.
#include "test/cuda/attention_fixture.hpp"
#include "test/support/gradcheck.hpp"

namespace choir::test {
namespace {

TEST_F(CudaAttention, BiasOfEveryKind) {
  for (const BiasKind kind : {BiasKind::full, BiasKind::shared, BiasKind::shifted})
    for (const bool causal : {true, false})
      over_types({.batch = 2,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = causal ? 64 : 20,
                  .queries = 65,
                  .keys = causal ? 75 : 140,
                  .causal = causal,
                  .lengths = {65, 33},
                  .bias = kind});
  for (const std::int64_t d : {32, 96, 128})
    over_types({.batch = 1,
                .heads = 1,
                .kv_heads = 1,
                .width = d,
                .queries = 40,
                .keys = 100,
                .bias = BiasKind::full});
}

TEST_F(CudaAttention, BiasOfMinusInfinityHidesKeys) {
  for (const DType type : kAttentionTypes) {
    AttentionCase c{.batch = 1,
                    .heads = 2,
                    .kv_heads = 1,
                    .width = 16,
                    .queries = 20,
                    .keys = 90,
                    .causal = false,
                    .dtype = type,
                    .bias = BiasKind::full};
    AttentionTensors hidden(c, 1);
    for (std::int64_t i = 0; i < hidden.bias.count(); ++i)
      hidden.bias.set(i, i % c.keys >= 33 || i / c.keys == 3 ? -INFINITY : 0);  // query 3 sees none
    const AttentionTensors t = computed(c, hidden), exact = hidden.exact();
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    const AttentionTolerance tolerance(c);
    const double limit = 4 * tolerance.sums + 1.5 * tolerance.stored;
    compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, name_of(c));
    expect_norm(t.out, exact.out, limit, "out " + name_of(c));
    expect_norm(t.d_q, exact.d_q, limit, "d_q " + name_of(c));
    expect_norm(t.d_kv, exact.d_kv, limit, "d_kv " + name_of(c));
  }
}

TEST_F(CudaAttention, RisingAndSharpScores) {
  for (const DType type : kAttentionTypes) {
    const AttentionCase c{.batch = 1,
                          .heads = 1,
                          .kv_heads = 1,
                          .width = 32,
                          .queries = 20,
                          .keys = 200,
                          .dtype = type,
                          .bias = BiasKind::full};
    AttentionTensors rising(c, 1);
    for (std::int64_t i = 0; i < rising.bias.count(); ++i)
      rising.bias.set(i, static_cast<double>(i % c.keys) - 100.0);
    const AttentionTensors t = computed(c, rising), exact = rising.exact();
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    // Scores up to 100 have errors of 100 units of roundoff, which P inherits.
    const AttentionTolerance tolerance(c);
    const double sums = tolerance.sums + 200 * unit_roundoff(DType::f32);
    const double limit = 4 * sums + 1.5 * tolerance.stored;
    expect_norm(t.out, exact.out, limit, "out " + name_of(c));
    compare_lse(t.log_sum_exp, exact.log_sum_exp, sums, name_of(c));
    expect_norm(t.d_bias, exact.d_bias, limit, "d_bias " + name_of(c));
  }
}

TEST_F(CudaAttention, GradientsAlongRandomDirections) {
  const AttentionCase c{.batch = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .width = 36,
                        .queries = 70,
                        .keys = 70,
                        .bias = BiasKind::shifted};
  AttentionTensors t(c, 3);
  const AttentionTensors done = computed(c, t);
  const auto loss = [&] {
    AttentionTensors at = t;
    const OnDevice tensors(device(), at, c);
    tensors.forward(stream());
    stream().synchronize();
    tensors.copy_to(at);
    return dot(at.out, at.d_out);
  };
  expect_directional(done.d_q, t.q, 1, loss, "packed q, k, v", 1e-4, 0x1p-6);
  expect_directional(done.stored_bias_gradient(), t.bias, 2, loss, "bias", 1e-4, 0x1p-6);
}

TEST_F(CudaAttention, BiasTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 8,
           .queries = 20,
           .keys = 140,
           .dtype = DType::f16,
           .bias = BiasKind::shifted});
}

}  // namespace
}  // namespace choir::test
