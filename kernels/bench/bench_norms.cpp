// Benches of norms and activations, against their references.
#include <algorithm>
#include <string>
#include <utility>

#include "choir/ops/norm.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/norm/norm.hpp"
#include "kernels/sums/sums.hpp"

namespace choir::ops {
namespace {

/// Rows at a time, to limit the memory of the reference.
constexpr std::int64_t kChunk = 4096;

struct NormOperands {
  Operand residual, delta, weight, bias, sum, out, mean, rstd;
};

NormForward arguments(const NormOperands& x, Norm kind, std::int64_t i) {
  NormForward f{
      .kind = kind, .residual = x.residual[i], .delta = x.delta[i], .weight = x.weight[i]};
  if (kind == Norm::layernorm) f.bias = x.bias[i], f.mean = x.mean[i];
  f.sum = x.sum[i], f.out = x.out[i], f.rstd = x.rstd[i];
  return f;
}

/// The fp64 norm of rows of `width`.
struct ExactNorm {
  ExactNorm(Norm kind, std::vector<double> input, const Operand& weight, const Operand& bias,
            std::int64_t rows, std::int64_t width)
      : x(std::move(input)),
        w(weight.exact(0, width)),
        b(bias.exact(0, width)),
        out(x.size()),
        mean(static_cast<std::size_t>(rows)),
        rstd(mean.size()) {
    NormForward f{
        .kind = kind, .residual = view_of(x, {rows, width}), .weight = view_of(w, {width})};
    if (kind == Norm::layernorm) f.bias = view_of(b, {width}), f.mean = view_of(mean, {rows});
    f.out = view_of(out, {rows, width}), f.rstd = view_of(rstd, {rows});
    ref::norm_forward(f);
  }
  std::vector<double> x, w, b, out, mean, rstd;
};

/// Dropout of a branch from `row` on. Kept elements are multiplied by 1, so that repeated calls in
/// place do not make them grow.
Dropout branch_dropout(const OpBench& bench, const TensorView& in, const TensorView& out,
                       std::int64_t row) {
  const std::int64_t tokens = bench.shape.tokens;
  return {.in = in,
          .out = out,
          .probability = 0.1,
          .factor = 0.9,
          .key = philox_key(1, "bench"),
          .first_sample = row / tokens,
          .tokens = tokens,
          .first_position = row % tokens};
}

/// With `dropped`, delta is dropped on its way into the sum.
void forward(OpBench& bench, Norm kind, const char* name, bool dropped = false) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  const Shape shape{rows, width};
  BenchOperands data = bench.operands(4.0 * static_cast<double>(rows * width));
  const DType t = bench.dtype;
  const NormOperands x{data.normal(t, shape),          data.normal(t, shape),
                       data.normal(t, {width}),        data.normal(t, {width}),
                       data.empty(t, shape),           data.empty(t, shape),
                       data.empty(bench.sums, {rows}), data.empty(bench.sums, {rows})};
  const auto call = [&](const Stream& s, std::int64_t i) {
    const NormForward args = arguments(x, kind, i);
    if (dropped)
      norm_forward(s, args, branch_dropout(bench, args.delta, args.delta, 0));
    else
      norm_forward(s, args);
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(rows, bench.shape.tokens)) {
    const std::int64_t at = w.first * width, n = w.count * width;
    std::vector<double> sum = x.residual.exact(at, n);
    std::vector<double> delta = x.delta.exact(at, n);
    const std::vector<double> stored = data.read(x.sum[0], at, n);
    const TensorView branch = view_of(delta, {w.count, width});
    if (dropped) ref::dropout(branch_dropout(bench, branch, branch, w.first));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i];
    agreement.add(stored, sum, allowed_error(t, 2));
    // The norm's input is the rounded sum.
    const ExactNorm exact(kind, stored, x.weight, x.bias, w.count, width);
    const auto terms = static_cast<double>(width);
    agreement.add(data.read(x.out[0], at, n), exact.out, allowed_error(t, terms));
    agreement.add(data.read(x.rstd[0], w.first, w.count), exact.rstd,
                  allowed_error(bench.sums, terms));
  }
  bench.row(name, shape, agreement, call);
}

void backward(OpBench& bench, Norm kind, const char* name) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  const Shape shape{rows, width};
  const bool layer = kind == Norm::layernorm;
  BenchOperands data = bench.operands(4.0 * static_cast<double>(rows * width));
  const DType t = bench.dtype, sums = bench.sums;
  const NormOperands x{data.normal(t, shape),    data.normal(t, shape),   data.normal(t, {width}),
                       data.normal(t, {width}),  data.empty(t, shape),    data.empty(t, shape),
                       data.empty(sums, {rows}), data.empty(sums, {rows})};
  const Operand d_out = data.normal(t, shape), d_sum = data.normal(t, shape),
                d_weight = data.normal(sums, {width}), d_bias = data.normal(sums, {width});
  const Operand workspace =
      data.empty(DType::u8, {std::max<std::int64_t>(1, norm_workspace(bench.stream, rows, width))});
  for (std::int64_t s = 0; s < data.sets(); ++s) {  // statistics of the residual alone
    NormForward f = arguments(x, kind, s);
    f.delta = f.sum = {};
    norm_forward(bench.stream, f);
  }
  const auto call = [&](const Stream& s, std::int64_t i) {
    NormBackward b{.kind = kind, .d_out = d_out[i], .sum = x.residual[i], .weight = x.weight[i]};
    if (layer) b.mean = x.mean[i], b.d_bias = d_bias[i];
    b.rstd = x.rstd[i], b.d_sum = d_sum[i], b.d_weight = d_weight[i], b.workspace = workspace[i];
    norm_backward(s, b);
  };
  call(bench.stream, 0);
  Agreement agreement;
  std::vector<double> weight_sums = d_weight.exact(0, width), bias_sums = d_bias.exact(0, width);
  for (std::int64_t first = 0; first < rows; first += kChunk) {
    const std::int64_t count = std::min(kChunk, rows - first), at = first * width,
                       n = count * width;
    ExactNorm exact(kind, x.residual.exact(at, n), x.weight, x.bias, count, width);
    std::vector<double> d_y = d_out.exact(at, n), d_x = d_sum.exact(at, n);
    NormBackward b{.kind = kind, .d_out = view_of(d_y, {count, width})};
    b.sum = view_of(exact.x, {count, width}), b.weight = view_of(exact.w, {width});
    if (layer) b.mean = view_of(exact.mean, {count}), b.d_bias = view_of(bias_sums, {width});
    b.rstd = view_of(exact.rstd, {count}), b.d_sum = view_of(d_x, {count, width});
    b.d_weight = view_of(weight_sums, {width});
    ref::norm_backward(b);
    agreement.add(data.read(d_sum[0], at, n), d_x, allowed_error(t, static_cast<double>(width)));
  }
  const auto terms = static_cast<double>(rows);
  agreement.add(data.read(d_weight[0]), weight_sums, allowed_error(sums, terms));
  if (layer) agreement.add(data.read(d_bias[0]), bias_sums, allowed_error(sums, terms));
  bench.row(name, shape, agreement, call);
}

/// Backward of a norm that also computes the gradient of a branch and of its bias, which are
/// checked against the gradient of the sum as it is stored.
void backward_of_branch(OpBench& bench) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.width;
  const Shape shape{rows, width};
  BenchOperands data = bench.operands(5.0 * static_cast<double>(rows * width));
  const DType t = bench.dtype, sums = bench.sums;
  const Operand d_out = data.normal(t, shape), x = data.normal(t, shape),
                weight = data.normal(t, {width}), d_sum = data.normal(t, shape),
                d_branch = data.empty(t, shape), mean = data.normal(sums, {rows}),
                rstd = data.positive(sums, {rows}), d_weight = data.normal(sums, {width}),
                d_bias = data.normal(sums, {width}), d_below = data.normal(sums, {width});
  const std::int64_t bytes = dropped_norm_workspace(bench.stream, rows, width);
  const Operand workspace = data.empty(DType::u8, {std::max<std::int64_t>(1, bytes)});
  const auto call = [&](const Stream& s, std::int64_t i) {
    NormBackward b{.d_out = d_out[i], .sum = x[i], .weight = weight[i], .mean = mean[i]};
    b.rstd = rstd[i], b.d_sum = d_sum[i], b.d_weight = d_weight[i], b.d_bias = d_bias[i];
    norm_backward(s, b,
                  {.dropout = branch_dropout(bench, d_sum[i], d_branch[i], 0),
                   .d_bias = d_below[i],
                   .workspace = workspace[i]});
  };
  call(bench.stream, 0);
  Agreement agreement;
  std::vector<double> below = d_below.exact(0, width);
  for (std::int64_t first = 0; first < rows; first += kChunk) {
    const std::int64_t count = std::min(kChunk, rows - first), at = first * width,
                       n = count * width;
    std::vector<double> d = data.read(d_sum[0], at, n), stored = data.read(d_branch[0], at, n);
    if (first % bench.shape.tokens == 0) {
      const TensorView branch = view_of(d, {count, width});
      ref::dropout(branch_dropout(bench, branch, branch, first));
      agreement.add(stored, d, allowed_error(t, 0));
    }
    ref::bias_gradient(view_of(stored, {count, width}), view_of(below, {width}));
  }
  agreement.add(data.read(d_below[0]), below, allowed_error(sums, static_cast<double>(rows)));
  bench.row("layernorm_backward+dropout", shape, agreement, call);
}

void activation(OpBench& bench, Activation kind, const std::string& name) {
  const std::int64_t rows = bench.shape.rows, width = bench.shape.hidden;
  const std::int64_t in_width = width * activation_inputs(kind);
  const DType t = bench.dtype;
  const Shape shape{rows, width};
  BenchOperands data = bench.operands(static_cast<double>(rows * (width + in_width)));
  const Operand x = data.normal(t, {rows, in_width}), d_y = data.normal(t, shape);
  const Operand y = data.empty(t, shape), d_x = data.empty(t, {rows, in_width});
  const auto forwards = [&](const Stream& s, std::int64_t i) {
    activation_forward(s, kind, x[i], y[i]);
  };
  const auto backwards = [&](const Stream& s, std::int64_t i) {
    activation_backward(s, kind, x[i], d_y[i], d_x[i]);
  };
  forwards(bench.stream, 0), backwards(bench.stream, 0);
  Agreement up, down;
  for (const Window w : windows_of(rows, bench.shape.tokens)) {
    const std::int64_t at = w.first * width, n = w.count * width;
    const std::int64_t in_at = w.first * in_width, in_n = w.count * in_width;
    std::vector<double> ex = x.exact(in_at, in_n), ed = d_y.exact(at, n), ey(ed.size()),
                        edx(ex.size());
    const TensorView in = view_of(ex, {w.count, in_width});
    ref::activation_forward(kind, in, view_of(ey, {w.count, width}));
    ref::activation_backward(kind, in, view_of(ed, {w.count, width}),
                             view_of(edx, {w.count, in_width}));
    up.add(data.read(y[0], at, n), ey, allowed_error(t, 0));
    down.add(data.read(d_x[0], in_at, in_n), edx, allowed_error(t, 0));
  }
  bench.row((name + "_forward").c_str(), shape, up, forwards);
  bench.row((name + "_backward").c_str(), shape, down, backwards);
}

}  // namespace

void bench_norms(OpBench& bench) {
  forward(bench, Norm::layernorm, "layernorm_forward+add");
  forward(bench, Norm::rmsnorm, "rmsnorm_forward+add");
  forward(bench, Norm::layernorm, "layernorm_forward+dropout", true);
  backward(bench, Norm::layernorm, "layernorm_backward");
  backward(bench, Norm::rmsnorm, "rmsnorm_backward");
  backward_of_branch(bench);
}

void bench_activations(OpBench& bench) {
  activation(bench, Activation::gelu, "gelu");
  activation(bench, Activation::gelu_tanh, "gelu_tanh");
  activation(bench, Activation::relu, "relu");
  activation(bench, Activation::swiglu, "swiglu");
  activation(bench, Activation::silu, "silu");
  activation(bench, Activation::geglu, "geglu");
}

}  // namespace choir::ops
