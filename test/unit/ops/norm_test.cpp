#include "choir/ops/norm.hpp"

#include <omp.h>

#include "choir/device/null_device.hpp"
#include "kernels/norm.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

using ops::Norm;

struct Case {
  Norm kind;
  DType dtype;
  std::int64_t rows, width;
  bool delta, bias;
  std::string name() const {
    return fmt::format("{} {} [{}, {}]{}{}", kind == Norm::layernorm ? "layernorm" : "rmsnorm",
                       name_of(dtype), rows, width, delta ? " +delta" : "", bias ? " +bias" : "");
  }
};

/// All the tensors of one norm, forward and backward, poisoned where they are written.
struct Tensors {
  HostTensor residual, delta, weight, bias, sum, out, mean, rstd, d_out, d_sum, d_weight, d_bias,
      workspace;

  explicit Tensors(const Case& c)
      : residual(HostTensor::normal(c.dtype, {c.rows, c.width}, 1, 2, 0.5)),
        weight(HostTensor::normal(c.dtype, {c.width}, 3, 0.3, 1)),
        sum(c.dtype, {c.rows, c.width}),
        out(c.dtype, {c.rows, c.width}),
        mean(sum_dtype(c.dtype), {c.rows}),
        rstd(sum_dtype(c.dtype), {c.rows}),
        d_out(HostTensor::normal(c.dtype, {c.rows, c.width}, 5)),
        d_sum(HostTensor::normal(c.dtype, {c.rows, c.width}, 6)),
        d_weight(HostTensor::normal(sum_dtype(c.dtype), {c.width}, 7)),
        workspace(DType::u8, {cpu::norm_workspace(c.rows, c.width)}) {
    if (c.delta) delta = HostTensor::normal(c.dtype, {c.rows, c.width}, 2);
    if (c.bias) bias = HostTensor::normal(c.dtype, {c.width}, 4);
    if (c.bias) d_bias = HostTensor::normal(sum_dtype(c.dtype), {c.width}, 8);
  }
  /// What the norm saw: the rounded sum.
  const HostTensor& input() const { return delta.count() > 0 ? sum : residual; }
  ops::NormForward forward(Norm kind) const {
    ops::NormForward f;
    f.kind = kind, f.residual = residual, f.delta = delta, f.weight = weight, f.bias = bias,
    f.out = out;
    if (delta.count() > 0) f.sum = sum;
    if (kind == Norm::layernorm) f.mean = mean;
    f.rstd = rstd;
    return f;
  }
  ops::NormBackward backward(Norm kind, bool accumulate) const {
    ops::NormBackward b;
    b.kind = kind, b.d_out = d_out, b.sum = input(), b.weight = weight, b.rstd = rstd;
    if (kind == Norm::layernorm) b.mean = mean;
    b.d_sum = d_sum, b.accumulate = accumulate, b.d_weight = d_weight, b.d_bias = d_bias;
    b.workspace = workspace;
    return b;
  }
  /// Exact copies in f64 whose input is what the fast norm saw.
  Tensors exact() const {
    Tensors t = *this;
    t.residual = input().to(DType::f64);
    t.delta = HostTensor();
    for (HostTensor* x : {&t.weight, &t.bias, &t.sum, &t.out, &t.mean, &t.rstd, &t.d_out, &t.d_sum,
                          &t.d_weight, &t.d_bias})
      *x = x->to(DType::f64);
    return t;
  }
};

double largest(const HostTensor& x) {
  double m = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

/// Largest |x| rstd over the rows: how much errors of the statistics are amplified.
double condition(const Tensors& exact, std::int64_t width) {
  double m = 1;
  for (std::int64_t i = 0; i < exact.residual.count(); ++i)
    m = std::max(m, std::fabs(exact.residual[i]) * exact.rstd[i / width]);
  return m;
}

void check(const Case& c) {
  SCOPED_TRACE(c.name());
  CpuBench cpu;
  Tensors t(c);
  ops::norm_forward(cpu.stream, t.forward(c.kind));
  Tensors exact = t.exact();
  ref::norm_forward(exact.forward(c.kind));
  for (std::int64_t i = 0; c.delta && i < t.sum.count(); ++i) {
    const double added = t.residual[i] + t.delta[i];
    ASSERT_NEAR(t.sum[i], added, operation_roundoff(c.dtype) * std::fabs(added));
  }
  // A sum of n terms over at least two lanes is off by at most (n / 2 + lanes + a few) roundings;
  // that error reaches the output times the condition number, and storing it rounds once more.
  const double u = unit_roundoff(sum_dtype(c.dtype)), store = unit_roundoff(c.dtype);
  const double growth = (static_cast<double>(c.width) / 2 + 32) * u, k = condition(exact, c.width);
  expect_close(t.rstd, exact.rstd, 2 * growth * k, 0, "rstd");
  if (c.kind == Norm::layernorm)
    expect_close(t.mean, exact.mean, 0, growth * largest(exact.residual), "mean");
  const double amplitude = k * largest(exact.weight) + largest(exact.bias);
  expect_close(t.out, exact.out, store, 4 * growth * k * amplitude + store * u, "out");

  for (const bool accumulate : {true, false}) {
    Tensors b = t, e = exact;  // from the statistics that forward stored
    e.mean = t.mean.to(DType::f64), e.rstd = t.rstd.to(DType::f64);
    if (!accumulate) b.d_sum.poison(), e.d_sum.poison();
    ops::norm_backward(cpu.stream, b.backward(c.kind, accumulate));
    ref::norm_backward(e.backward(c.kind, accumulate));
    const double g = largest(e.d_out) * largest(e.weight);
    expect_close(b.d_sum, e.d_sum, store, growth * largest(e.rstd) * g * 4 * (1 + k * k), "d_sum");
    const double terms = static_cast<double>(c.rows);
    const double rows_growth = (terms + 8) * u * terms;  // n roundings of sums of at most n terms
    expect_close(b.d_weight, e.d_weight, u, rows_growth * largest(e.d_out) * 2 * k + 4 * u,
                 "d_weight");
    if (c.bias)
      expect_close(b.d_bias, e.d_bias, u, rows_growth * largest(e.d_out) + 4 * u, "d_bias");
    for (const HostTensor* x : {&b.d_sum, &b.d_weight, &b.d_bias, &b.workspace, &t.out, &t.sum})
      EXPECT_TRUE(x->count() == 0 || x->guard_intact());
  }
}

TEST(Norm, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  for (const DType dtype : kElementTypes)
    for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
      for (const std::int64_t width : {3, 7, 16, 17, 63, 65, 128, 768, 1000})
        for (const std::int64_t rows : {1, 5, 67})
          for (const bool delta : {false, true})
            check({kind, dtype, rows, width, delta, kind == Norm::layernorm && rows != 5});
}

TEST(Norm, WidthOneGivesTheBias) {
  CpuBench cpu;
  Tensors t({Norm::layernorm, DType::f32, 4, 1, false, true});
  ops::norm_forward(cpu.stream, t.forward(Norm::layernorm));
  for (int r = 0; r < 4; ++r) EXPECT_EQ(t.out[r], t.bias[0]);
}

TEST(Norm, SumMayOverwriteResidualOrDelta) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool over_residual : {true, false}) {
      CpuBench cpu;
      const Case c{Norm::layernorm, dtype, 9, 65, true, true};
      Tensors apart(c), inside(c);
      ops::norm_forward(cpu.stream, apart.forward(c.kind));
      auto args = inside.forward(c.kind);
      args.sum = over_residual ? inside.residual : inside.delta;
      ops::norm_forward(cpu.stream, args);
      EXPECT_TRUE(apart.sum.same_bits(over_residual ? inside.residual : inside.delta));
      EXPECT_TRUE(apart.out.same_bits(inside.out));
    }
}

TEST(Norm, GradientsAgreeWithFiniteDifferences) {
  for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
    for (const std::int64_t width : {7, 65}) {
      CpuBench cpu;
      Tensors t({kind, DType::f64, 4, width, false, kind == Norm::layernorm});
      const auto loss = [&] {
        ops::norm_forward(cpu.stream, t.forward(kind));
        return dot(t.out, t.d_out);
      };
      loss();
      for (HostTensor* g : {&t.d_weight, &t.d_bias})
        *g = g->count() ? HostTensor::filled(DType::f64, g->shape(), 0) : *g;
      ops::norm_backward(cpu.stream, t.backward(kind, false));
      const Tensors done = t;
      expect_gradient(done.d_sum, t.residual, loss, "norm to x");
      expect_gradient(done.d_weight, t.weight, loss, "norm to weight");
      if (t.bias.count() > 0) expect_gradient(done.d_bias, t.bias, loss, "norm to bias");
      expect_directional(done.d_sum, t.residual, 11, loss, "norm to x");
    }
}

TEST(Norm, BitsDoNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{Norm::layernorm, dtype, 515, 129, true, true};
    std::vector<Tensors> results;
    for (int n = 1; n <= 4; ++n) {
      omp_set_num_threads(n);
      CpuBench cpu;
      Tensors t(c);
      ops::norm_forward(cpu.stream, t.forward(c.kind));
      ops::norm_backward(cpu.stream, t.backward(c.kind, true));
      results.push_back(t);
      EXPECT_TRUE(t.d_weight.same_bits(results[0].d_weight)) << n << " threads";
      EXPECT_TRUE(t.d_bias.same_bits(results[0].d_bias)) << n << " threads";
      EXPECT_TRUE(t.d_sum.same_bits(results[0].d_sum)) << n << " threads";
    }
  }
  omp_set_num_threads(threads);
}

TEST(Norm, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const Case c{Norm::layernorm, DType::f32, 6, 16, false, true};
  Tensors t(c);
  auto args = t.forward(c.kind);
  args.mean = TensorView{};
  EXPECT_THROW(ops::norm_forward(cpu.stream, args), Error);
  auto back = t.backward(c.kind, true);
  back.workspace.shape = Shape{8};
  EXPECT_THROW(ops::norm_backward(cpu.stream, back), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  auto nowhere = t.forward(c.kind);
  for (TensorView* x : {&nowhere.residual, &nowhere.weight, &nowhere.bias, &nowhere.out,
                        &nowhere.mean, &nowhere.rstd})
    x->data = nothing.allocate(x->bytes());
  ops::norm_forward(stream, nowhere);
  EXPECT_EQ(work.bytes, 4.0 * (2 * 6 * 16 + 2 * 16 + 2 * 6));
  EXPECT_EQ(work.flops, 8.0 * 6 * 16);
}

}  // namespace
}  // namespace choir
