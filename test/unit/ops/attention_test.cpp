// Every attention kernel against the naive reference in f64.
#include "test/unit/ops/attention_case.hpp"

#include "kernels/gemm/gemm.hpp"
#include "src/device/null_device.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

void compare_attention(AttentionKernel kernel, const AttentionCase& c) {
  const std::string what = (kernel == AttentionKernel::amx ? "amx " : "simd ") + name_of(c);
  const AttentionTensors t(c, 1);
  const AttentionTensors exact = t.exact();
  const AttentionTolerance tolerance(c);
  run_forward(kernel, t);
  ref::attention_forward(exact.forward());
  expect_close(t.out, exact.out, tolerance.stored * 1.01, tolerance.sums + 2 * tolerance.stored,
               "out " + what);
  expect_norm(t.out, exact.out, tolerance.sums + tolerance.stored, "out " + what);
  compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, "lse " + what);
  run_backward(kernel, t);
  ref::attention_backward(exact.backward());
  const double limit = 4 * tolerance.sums + 1.5 * tolerance.stored;
  // If a window has few keys, P (dP - delta) is the difference of equal terms of order one.
  const double cancelled = c.window > 0 || !c.begins.empty() ? limit : 0;
  expect_norm(t.d_q, exact.d_q, limit, "d_q " + what, cancelled);
  if (t.d_kv.count() > 0) expect_norm(t.d_kv, exact.d_kv, limit, "d_kv " + what, cancelled);
  if (t.d_bias.count() > 0) expect_norm(t.d_bias, exact.d_bias, limit, "d_bias " + what);
}

void over_kernels(AttentionCase c) {
  for (const DType type : kElementTypes) {
    c.dtype = type;
    compare_attention(AttentionKernel::simd, c);
    if (type == DType::bf16 && c.bias == BiasKind::none && c.window == 0 && c.begins.empty() &&
        c.softcap == 0 && amx_available())
      compare_attention(AttentionKernel::amx, c);
  }
}

TEST(Attention, EveryLength) {
  for (const std::int64_t t : {1, 3, 7, 16, 17, 63, 64, 65, 100, 129})
    for (const bool causal : {true, false})
      over_kernels({.batch = 2,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 32,
                    .queries = t,
                    .keys = t,
                    .causal = causal});
}

TEST(Attention, EveryHeadWidth) {
  for (const std::int64_t d : {1, 4, 8, 20, 32, 33, 48, 64, 80, 128, 256})
    over_kernels({.batch = 1, .heads = 3, .kv_heads = 3, .width = d, .queries = 70, .keys = 70});
}

TEST(Attention, GroupedQueries) {
  for (const std::int64_t kv : {1, 2, 4})
    for (const bool causal : {true, false})
      over_kernels({.batch = 2,
                    .heads = 4,
                    .kv_heads = kv,
                    .width = 16,
                    .queries = 97,
                    .keys = 97,
                    .causal = causal});
}

TEST(Attention, LongerThanOneStrip) {
  over_kernels({.batch = 1, .heads = 2, .kv_heads = 1, .width = 20, .queries = 300, .keys = 300});
  over_kernels({.batch = 1, .heads = 1, .kv_heads = 1, .width = 16, .queries = 290, .keys = 400});
}

TEST(Attention, RaggedLengths) {
  for (const bool causal : {true, false})
    over_kernels({.batch = 5,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 16,
                  .queries = 70,
                  .keys = 70,
                  .causal = causal,
                  .lengths = {70, 33, 1, 0, 64}});
}

TEST(Attention, QueriesAgainstACache) {
  for (const std::int64_t width : {64, 33, 20, 3})  // with and without remaining lanes
    for (const std::int64_t keys : {1, 5, 32, 33, 130})
      over_kernels(
          {.batch = 2, .heads = 4, .kv_heads = 2, .width = width, .queries = 1, .keys = keys});
  for (const bool causal : {true, false})
    over_kernels({.batch = 2,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 32,
                  .queries = 19,
                  .keys = 75,
                  .causal = causal});
  over_kernels({.batch = 1,
                .heads = 2,
                .kv_heads = 2,
                .width = 32,
                .queries = 40,
                .keys = 9,
                .causal = false});
}

// With windows, documents, ragged lengths, a cache, and one query; scores of 2 and more are far
// beyond the smaller cap.
TEST(Attention, SoftCap) {
  for (const double cap : {0.5, 3.0, 50.0}) {
    over_kernels({.batch = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 24,
                  .queries = 97,
                  .keys = 97,
                  .softcap = cap});
    over_kernels({.batch = 3,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 33,
                  .queries = 19,
                  .keys = 75,
                  .lengths = {75, 20, 0},
                  .window = 9,
                  .softcap = cap});
    over_kernels({.batch = 2,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 16,
                  .queries = 70,
                  .keys = 70,
                  .begins = documents(2, 70, {0, 13, 64}),
                  .softcap = cap});
    for (const std::int64_t keys : {5, 33, 300})
      over_kernels({.batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 20,
                    .queries = 1,
                    .keys = keys,
                    .softcap = cap});
  }
}

// Keys are divided into parts that threads share: some parts are visible to a sample only a little
// or not at all, and some have nothing to read; more parts than the largest possible number; three
// heads per group.
TEST(Attention, OneQueryOfManyKeys) {
  for (const std::int64_t keys : {64, 65, 300, 4200}) {
    over_kernels({.batch = 1, .heads = 6, .kv_heads = 2, .width = 64, .queries = 1, .keys = keys});
    over_kernels({.batch = 4,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 20,
                  .queries = 1,
                  .keys = keys,
                  .causal = false,
                  .lengths = {static_cast<std::int32_t>(keys), 1, 0, 64}});
  }
  over_kernels({.batch = 1,
                .heads = 2,
                .kv_heads = 1,
                .width = 24,
                .queries = 1,
                .keys = 400,
                .window = 70});
  over_kernels({.batch = 2,
                .heads = 2,
                .kv_heads = 1,
                .width = 24,
                .queries = 1,
                .keys = 400,
                .begins = documents(2, 400, {100, 399})});
}

// Windows from one key to one that hides nothing; with and without a cache, grouped, ragged, and
// longer than the blocks of keys and queries.
TEST(Attention, SlidingWindow) {
  for (const std::int64_t window : {1, 2, 7, 31, 64, 65, 129, 200}) {
    over_kernels({.batch = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 24,
                  .queries = 150,
                  .keys = 150,
                  .window = window});
    over_kernels({.batch = 2,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = 33,
                  .queries = 19,
                  .keys = 175,
                  .lengths = {175, 170},
                  .window = window});
    over_kernels({.batch = 1,
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
TEST(Attention, Documents) {
  const std::vector<std::int64_t> starts{0, 1, 2, 31, 32, 33, 64, 100, 129, 149};
  over_kernels({.batch = 2,
                .heads = 4,
                .kv_heads = 2,
                .width = 24,
                .queries = 150,
                .keys = 150,
                .begins = documents(2, 150, starts)});
  over_kernels({.batch = 2,
                .heads = 2,
                .kv_heads = 1,
                .width = 33,
                .queries = 19,
                .keys = 175,
                .lengths = {175, 170},
                .begins = documents(2, 170, {40, 160, 165})});
  over_kernels({.batch = 2,
                .heads = 2,
                .kv_heads = 2,
                .width = 64,
                .queries = 140,
                .keys = 140,
                .window = 9,
                .begins = documents(2, 140, {5, 70, 71, 130})});
}

TEST(Attention, AWindowIsCausalWithoutABiasAndCounted) {
  NullDevice device;
  const Stream stream(device);
  ops::AttentionProblem p{
      .batch = 1, .heads = 1, .kv_heads = 1, .head_width = 8, .queries = 5, .keys = 7, .window = 3};
  EXPECT_EQ(attention_kernel(p), AttentionKernel::simd);
  EXPECT_NO_THROW(ops::attention_workspace(stream, p, true));
  p.biased = true;
  EXPECT_THROW(ops::attention_workspace(stream, p, true), Error);
  p.biased = false, p.causal = false;
  EXPECT_THROW(ops::attention_workspace(stream, p, true), Error);
}

TEST(Attention, BiasOfEveryKind) {
  for (const BiasKind kind : {BiasKind::full, BiasKind::shared, BiasKind::shifted})
    for (const bool causal : {true, false}) {
      over_kernels({.batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .width = 20,
                    .queries = 70,
                    .keys = 70,
                    .causal = causal,
                    .lengths = {70, 33},
                    .bias = kind});
      over_kernels({.batch = 1,
                    .heads = 2,
                    .kv_heads = 2,
                    .width = 16,
                    .queries = 19,
                    .keys = 75,
                    .causal = causal,
                    .bias = kind});
    }
}

TEST(Attention, BiasOfMinusInfinityHidesKeys) {
  AttentionCase c{.batch = 2, .heads = 2, .kv_heads = 1, .width = 16, .queries = 40, .keys = 60};
  for (const DType type : kElementTypes) {
    c.dtype = type, c.causal = false, c.lengths = {}, c.bias = BiasKind::full;
    AttentionTensors hidden(c, 1);
    for (std::int64_t i = 0; i < hidden.bias.count(); ++i)
      hidden.bias.set(i, i % c.keys < 33 ? 0 : -INFINITY);
    c.lengths = {33, 33}, c.bias = BiasKind::none;
    const AttentionTensors shorter(c, 1), exact = hidden.exact();
    for (const AttentionTensors* t :
         std::initializer_list<const AttentionTensors*>{&hidden, &shorter})
      run_forward(AttentionKernel::simd, *t), run_backward(AttentionKernel::simd, *t);
    ref::attention_forward(exact.forward());
    EXPECT_TRUE(hidden.out.same_bits(shorter.out)) << name_of(c);
    EXPECT_TRUE(hidden.d_q.same_bits(shorter.d_q) && hidden.d_kv.same_bits(shorter.d_kv));
    expect_norm(hidden.out, exact.out, AttentionTolerance(c).sums + AttentionTolerance(c).stored,
                name_of(c));
  }
}

TEST(Attention, KeysBeyondTheLengthAreNeverRead) {
  AttentionCase c{.batch = 2, .heads = 1, .kv_heads = 1, .width = 24, .keys = 40, .causal = false};
  c.lengths = {17, 33};
  for (const std::int64_t queries : {20, 1})
    for (const DType type : kElementTypes)
      for (const AttentionKernel kernel : {AttentionKernel::simd, AttentionKernel::amx}) {
        if (kernel == AttentionKernel::amx && (type != DType::bf16 || !amx_available())) continue;
        c.queries = queries, c.dtype = type;
        AttentionTensors clean(c, 1), dirty(c, 1);
        const std::int64_t row = dirty.kv.shape().back(), capacity = dirty.kv.shape()[1];
        for (std::int64_t b = 0; b < c.batch; ++b)
          for (std::int64_t i = c.lengths[static_cast<std::size_t>(b)] * row; i < capacity * row;
               ++i)
            dirty.kv.set(b * capacity * row + i, NAN);
        for (const AttentionTensors* t : {&clean, &dirty})
          run_forward(kernel, *t), run_backward(kernel, *t);
        EXPECT_TRUE(clean.out.same_bits(dirty.out) && clean.d_q.same_bits(dirty.d_q)) << name_of(c);
      }
}

TEST(Attention, SharpScoresStayFinite) {
  AttentionCase c{.batch = 1, .heads = 1, .kv_heads = 1, .width = 16, .queries = 80, .keys = 80};
  for (const AttentionKernel kernel : {AttentionKernel::simd, AttentionKernel::amx}) {
    c.dtype = kernel == AttentionKernel::amx ? DType::bf16 : DType::f32;
    if (kernel == AttentionKernel::amx && !amx_available()) continue;
    AttentionTensors t(c, 1);
    for (std::int64_t i = 0; i < t.q.count(); ++i) t.q.set(i, 30 * t.q[i]);
    run_forward(kernel, t), run_backward(kernel, t);
    for (const HostTensor* x : {&t.out, &t.log_sum_exp, &t.d_q})
      for (std::int64_t i = 0; i < x->count(); ++i) ASSERT_TRUE(std::isfinite((*x)[i]));
  }
}

TEST(Attention, RepeatsBitwiseForAnyShares) {
  for (const int threads : {1, 2, 3, 5})
    for (const AttentionKernel kernel : {AttentionKernel::simd, AttentionKernel::amx}) {
      if (kernel == AttentionKernel::amx && !amx_available()) continue;
      const AttentionCase c{.batch = 1,
                            .heads = 2,
                            .kv_heads = 1,
                            .width = 16,
                            .queries = 200,
                            .keys = 200,
                            .dtype = DType::bf16};
      const AttentionTensors first(c, 1), second(c, 1);
      for (const AttentionTensors* t : {&first, &second})
        run_forward(kernel, *t, threads), run_backward(kernel, *t, threads);
      EXPECT_TRUE(first.out.same_bits(second.out) && first.d_q.same_bits(second.d_q));
      const AttentionTensors exact = first.exact();
      ref::attention_backward(exact.backward());
      expect_norm(first.d_q, exact.d_q, 2 * unit_roundoff(DType::bf16),
                  fmt::format("{} threads", threads));
    }
}

TEST(Attention, SharesTheTileRegistersWithGemm) {
  CpuBench cpu;
  const AttentionCase c{.width = 32, .dtype = DType::bf16};
  const AttentionTensors alone(c, 1), mixed(c, 1);
  const AttentionKernel kernel = attention_kernel(alone.problem());
  run_forward(kernel, alone), run_backward(kernel, alone);
  const HostTensor x = HostTensor::normal(DType::bf16, {64, 48}, 1);
  HostTensor first(DType::f32, {48, 48}), again(DType::f32, {48, 48});
  ops::gemm(cpu.stream, x, x, first, {.transpose_a = true});
  run_forward(kernel, mixed);
  ops::gemm(cpu.stream, x, x, again, {.transpose_a = true});
  run_backward(kernel, mixed);
  EXPECT_TRUE(first.same_bits(again));
  EXPECT_TRUE(alone.out.same_bits(mixed.out) && alone.d_q.same_bits(mixed.d_q));
}

/// <w, out> as a function of the packed inputs, computed by the op itself.
struct Loss {
  CpuBench cpu;
  AttentionTensors t;
  HostTensor workspace;
  explicit Loss(const AttentionCase& c)
      : t(c, 3),
        workspace(DType::u8, {ops::attention_workspace(cpu.stream, t.problem(), true) +
                              ops::attention_workspace(cpu.stream, t.problem(), false)}) {}
  double operator()() {
    ops::AttentionForward args = t.forward();
    args.workspace = workspace;
    ops::attention_forward(cpu.stream, args);
    return dot(t.out, t.d_out);
  }
  void gradients() {
    (*this)();
    ops::AttentionBackward args = t.backward();
    args.workspace = workspace;
    ops::attention_backward(cpu.stream, args);
  }
};

TEST(Attention, GradientsByFiniteDifferences) {
  for (const bool causal : {true, false}) {
    Loss loss({.batch = 1,
               .heads = 2,
               .kv_heads = 1,
               .width = 5,
               .queries = 9,
               .keys = 9,
               .causal = causal,
               .dtype = DType::f64});
    loss.gradients();
    expect_gradient(
        loss.t.d_q, loss.t.q, [&] { return loss(); }, "packed q, k, v");
  }
}

TEST(Attention, GradientsOfTheBiasByFiniteDifferences) {
  for (const BiasKind kind : {BiasKind::full, BiasKind::shared, BiasKind::shifted}) {
    Loss loss({.batch = 2,
               .heads = 2,
               .kv_heads = 1,
               .width = 5,
               .queries = 7,
               .keys = 9,
               .dtype = DType::f64,
               .lengths = {9, 6},
               .bias = kind});
    loss.gradients();
    expect_gradient(
        loss.t.stored_bias_gradient(), loss.t.bias, [&] { return loss(); }, "bias");
    expect_gradient(
        loss.t.d_q, loss.t.q, [&] { return loss(); }, "q under a bias");
  }
}

TEST(Attention, GradientsOfTheBiasAlongRandomDirections) {
  for (const BiasKind kind : {BiasKind::full, BiasKind::shared, BiasKind::shifted}) {
    Loss loss({.batch = 2,
               .heads = 3,
               .kv_heads = 3,
               .width = 33,
               .queries = 70,
               .keys = 70,
               .dtype = DType::f64,
               .bias = kind});
    loss.gradients();
    expect_directional(
        loss.t.stored_bias_gradient(), loss.t.bias, 1, [&] { return loss(); }, "bias");
    expect_directional(
        loss.t.d_q, loss.t.q, 2, [&] { return loss(); }, "packed q, k, v under a bias");
  }
}

TEST(Attention, GradientsAlongRandomDirections) {
  for (const std::int64_t kv : {1, 3}) {
    Loss loss({.batch = 2,
               .heads = 3,
               .kv_heads = kv,
               .width = 33,
               .queries = 70,
               .keys = 70,
               .dtype = DType::f64});
    loss.gradients();
    for (std::uint64_t seed = 1; seed < 4; ++seed)
      expect_directional(
          loss.t.d_q, loss.t.q, seed, [&] { return loss(); }, "packed q, k, v");
  }
}

TEST(Attention, NullDeviceCountsAndPlansAsTheCpu) {
  NullDevice null;
  WorkCounter work;
  const Stream stream(null, &work);
  Loss loss({.batch = 2,
             .heads = 4,
             .kv_heads = 2,
             .width = 16,
             .queries = 10,
             .keys = 12,
             .dtype = DType::bf16});
  for (const bool backward : {false, true})
    EXPECT_EQ(ops::attention_workspace(stream, loss.t.problem(), backward),
              ops::attention_workspace(loss.cpu.stream, loss.t.problem(), backward));
  ops::AttentionForward args = loss.t.forward();
  args.workspace = loss.workspace;
  ops::attention_forward(stream, args);
  EXPECT_TRUE(std::isnan(loss.t.out[0]));
  EXPECT_DOUBLE_EQ(work.flops, 4.0 * 16 * 2 * 4 * (3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12));
  loss();
  EXPECT_DOUBLE_EQ(work.flops, loss.cpu.work.flops);
  EXPECT_DOUBLE_EQ(work.bytes, loss.cpu.work.bytes);
}

TEST(Attention, NullDevicePlansForCuda) {
  NullDevice null(DeviceKind::cuda);
  const Stream stream(null);
  const AttentionTensors t({.batch = 3, .heads = 4, .queries = 10, .keys = 12, .dtype = DType::f16},
                           1);
  ops::AttentionProblem own = t.problem();
  own.implementation = ops::AttentionImplementation::own;
  EXPECT_EQ(ops::attention_workspace(stream, own, false), 0);
  EXPECT_EQ(ops::attention_workspace(stream, own, true), 3 * 4 * 10 * 4);
  EXPECT_GE(ops::attention_workspace(stream, t.problem(), true), 3 * 4 * 10 * 4);
  ops::AttentionProblem wide = own, exact = own;
  wide.head_width = 256, exact.dtype = DType::f64;
  EXPECT_EQ(ops::attention_workspace(stream, wide, true), 3 * 4 * 10 * 4);
  EXPECT_THROW(ops::attention_workspace(stream, exact, false), DeckError);
  wide.queries = 1, wide.keys = 3000;  // three parts of keys
  EXPECT_EQ(ops::attention_workspace(stream, wide, false), 3 * 4 * 3 * (256 + 2) * 4);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  Loss loss({.batch = 1, .heads = 2, .kv_heads = 2, .width = 8, .queries = 4, .keys = 4});
  ops::AttentionForward args = loss.t.forward();
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);  // no workspace
  args.workspace = loss.workspace;
  args.problem.kv_heads = 3;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);
  args.problem.kv_heads = 2, args.problem.keys = 3;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);  // fewer keys than queries
  args.problem.keys = 4, args.problem.head_width = 257;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);
  args.problem.head_width = 8, args.problem.biased = true;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);  // and no bias
  args.problem.biased = false, args.bias.data = args.q.data;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), Error);  // not planned
  args.bias = {}, args.problem.implementation = ops::AttentionImplementation::cudnn;
  EXPECT_THROW(ops::attention_forward(loss.cpu.stream, args), DeckError);
  args.problem.implementation = ops::AttentionImplementation::own;
  EXPECT_NO_THROW(ops::attention_forward(loss.cpu.stream, args));
  ops::AttentionBackward back = loss.t.backward();
  back.workspace = loss.workspace, back.d_bias = back.log_sum_exp;
  EXPECT_THROW(ops::attention_backward(loss.cpu.stream, back), Error);  // the forward had no bias
}

}  // namespace
}  // namespace choir
