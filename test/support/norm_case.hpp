#pragma once
// LayerNorm and RMSNorm, forward and backward, against the reference, on any device.
#include "choir/ops/norm.hpp"
#include "kernels/norm/norm.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct NormCase {
  ops::Norm kind;
  DType dtype;
  std::int64_t rows, width;
  bool delta, bias;
  int skew = 0;
  double offset = 0;
  std::string name() const {
    return fmt::format("{} {} [{}, {}]{}{} skew {} offset {}",
                       kind == ops::Norm::layernorm ? "layernorm" : "rmsnorm", name_of(dtype), rows,
                       width, delta ? " +delta" : "", bias ? " +bias" : "", skew, offset);
  }
};

/// All tensors of one norm, forward and backward; the outputs are poisoned.
struct NormTensors {
  HostTensor residual, delta, weight, bias, sum, out, mean, rstd, d_out, d_sum, d_weight, d_bias,
      workspace;
  double offset;

  explicit NormTensors(const NormCase& c)
      : residual(HostTensor::normal(c.dtype, {c.rows, c.width}, 1, 2, 0.5)),
        weight(HostTensor::normal(c.dtype, {c.width}, 3, 0.3, 1)),
        sum(c.dtype, {c.rows, c.width}),
        out(c.dtype, {c.rows, c.width}),
        mean(sum_dtype(c.dtype), {c.rows}),
        rstd(sum_dtype(c.dtype), {c.rows}),
        d_out(HostTensor::normal(c.dtype, {c.rows, c.width}, 5)),
        d_sum(HostTensor::normal(c.dtype, {c.rows, c.width}, 6)),
        d_weight(HostTensor::normal(sum_dtype(c.dtype), {c.width}, 7)),
        workspace(DType::u8, {cpu::norm_workspace(c.rows, c.width)}),
        offset(c.offset) {
    if (c.delta) delta = HostTensor::normal(c.dtype, {c.rows, c.width}, 2);
    if (c.bias) bias = HostTensor::normal(c.dtype, {c.width}, 4);
    if (c.bias) d_bias = HostTensor::normal(sum_dtype(c.dtype), {c.width}, 8);
  }
  /// Input of the norm: the rounded sum.
  const HostTensor& input() const { return delta.count() > 0 ? sum : residual; }
  ops::NormForward forward(ops::Norm kind) const {
    ops::NormForward f;
    f.kind = kind, f.residual = residual, f.delta = delta, f.weight = weight, f.bias = bias,
    f.out = out;
    if (delta.count() > 0) f.sum = sum;
    if (kind == ops::Norm::layernorm) f.mean = mean;
    f.rstd = rstd, f.offset = offset;
    return f;
  }
  ops::NormBackward backward(ops::Norm kind, bool accumulate) const {
    ops::NormBackward b;
    b.kind = kind, b.d_out = d_out, b.sum = input(), b.weight = weight, b.rstd = rstd;
    if (kind == ops::Norm::layernorm) b.mean = mean;
    b.d_sum = d_sum, b.accumulate = accumulate, b.d_weight = d_weight, b.d_bias = d_bias;
    b.workspace = workspace, b.offset = offset;
    return b;
  }
  /// Exact copies in f64, whose input is that of the fast norm.
  NormTensors exact() const {
    NormTensors t = *this;
    t.residual = input().to(DType::f64);
    t.delta = HostTensor();
    for (HostTensor* x : {&t.weight, &t.bias, &t.sum, &t.out, &t.mean, &t.rstd, &t.d_out, &t.d_sum,
                          &t.d_weight, &t.d_bias})
      *x = x->to(DType::f64);
    return t;
  }

  void forward_on(Device& device, const NormCase& c) {
    Mirror mirror(device);
    ops::NormForward f;
    f.kind = c.kind, f.residual = mirror.in(residual, c.skew), f.delta = mirror.in(delta, c.skew);
    f.weight = mirror.in(weight, c.skew), f.bias = mirror.in(bias, c.skew);
    f.out = mirror.io(out, c.skew), f.rstd = mirror.io(rstd);
    if (c.delta) f.sum = mirror.io(sum, c.skew);
    if (c.kind == ops::Norm::layernorm) f.mean = mirror.io(mean);
    f.offset = c.offset;
    ops::norm_forward(Stream(device), f);
    mirror.fetch();
  }
  void backward_on(Device& device, const NormCase& c, bool accumulate) {
    Mirror mirror(device);
    const Stream stream(device);
    ops::NormBackward b;
    b.kind = c.kind, b.d_out = mirror.in(d_out, c.skew), b.sum = mirror.in(input(), c.skew);
    b.weight = mirror.in(weight, c.skew), b.rstd = mirror.in(rstd);
    if (c.kind == ops::Norm::layernorm) b.mean = mirror.in(mean);
    b.d_sum = mirror.io(d_sum, c.skew), b.accumulate = accumulate;
    b.d_weight = mirror.io(d_weight), b.d_bias = mirror.io(d_bias);
    b.workspace = mirror.workspace(ops::norm_workspace(stream, c.rows, c.width));
    b.offset = c.offset;
    ops::norm_backward(stream, b);
    mirror.fetch();
  }
};

inline double largest_magnitude(const HostTensor& x) {
  double m = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

/// Largest |x| rstd over the rows: the factor by which errors of the statistics are amplified.
inline double condition(const NormTensors& exact, std::int64_t width) {
  double m = 1;
  for (std::int64_t i = 0; i < exact.residual.count(); ++i)
    m = std::max(m, std::fabs(exact.residual[i]) * exact.rstd[i / width]);
  return m;
}

/// Runs forward and backward, with and without accumulation; each runs twice and must give the same
/// bits.
inline void check_norm(Device& device, const NormCase& c) {
  SCOPED_TRACE(c.name());
  NormTensors t(c);
  t.forward_on(device, c);
  const NormTensors exact = t.exact();
  ref::norm_forward(exact.forward(c.kind));
  for (std::int64_t i = 0; c.delta && i < t.sum.count(); ++i) {
    const double added = t.residual[i] + t.delta[i];
    ASSERT_NEAR(t.sum[i], added, operation_roundoff(c.dtype) * std::fabs(added));
  }
  // A sum of n terms in at least two parts is off by at most (n / 2 + parts + a few) roundings, and
  // by fewer than 32 for rows of a single part; that error reaches the output times the condition
  // number, and storing it rounds once more.
  const double u = unit_roundoff(sum_dtype(c.dtype)), store = unit_roundoff(c.dtype);
  const double growth = (static_cast<double>(c.width) / 2 + 32) * u, k = condition(exact, c.width);
  expect_close(t.rstd, exact.rstd, 2 * growth * k, 0, "rstd");
  if (c.kind == ops::Norm::layernorm)
    expect_close(t.mean, exact.mean, 0, growth * largest_magnitude(exact.residual), "mean");
  const double most_weight = largest_magnitude(exact.weight) + c.offset;
  const double amplitude = k * most_weight + largest_magnitude(exact.bias);
  expect_close(t.out, exact.out, store, 4 * growth * k * amplitude + store * u, "out");
  NormTensors again(c);
  again.forward_on(device, c);
  EXPECT_TRUE(again.out.same_bits(t.out) && again.rstd.same_bits(t.rstd)) << "not deterministic";

  for (const bool accumulate : {true, false}) {
    NormTensors b = t, e = exact;  // from the statistics that forward stored
    e.mean = t.mean.to(DType::f64), e.rstd = t.rstd.to(DType::f64);
    if (!accumulate) b.d_sum.poison(), e.d_sum.poison();
    NormTensors second = b;
    b.backward_on(device, c, accumulate);
    second.backward_on(device, c, accumulate);
    for (const auto& [one, two] :
         {std::pair{&b.d_sum, &second.d_sum}, std::pair{&b.d_weight, &second.d_weight},
          std::pair{&b.d_bias, &second.d_bias}})
      EXPECT_TRUE(one->count() == 0 || one->same_bits(*two)) << "not deterministic";
    ref::norm_backward(e.backward(c.kind, accumulate));
    const double g = largest_magnitude(e.d_out) * most_weight;
    expect_close(b.d_sum, e.d_sum, store, growth * largest_magnitude(e.rstd) * g * 4 * (1 + k * k),
                 "d_sum");
    const double terms = static_cast<double>(c.rows);
    const double rows_growth = (terms + 8) * u * terms;  // n roundings of sums of at most n terms
    expect_close(b.d_weight, e.d_weight, u,
                 rows_growth * largest_magnitude(e.d_out) * 2 * k + 4 * u, "d_weight");
    if (c.bias)
      expect_close(b.d_bias, e.d_bias, u, rows_growth * largest_magnitude(e.d_out) + 4 * u,
                   "d_bias");
  }
}

}  // namespace choir::test
