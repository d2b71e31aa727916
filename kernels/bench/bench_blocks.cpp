// Benches of operations that connect a FastConformer's blocks, against their references: LayerNorm
// over channels of two ranks, stochastic depth, and the running statistics of a step.
#include <algorithm>

#include "kernels/bench/op_bench.hpp"
#include "kernels/norm/batch_norm.hpp"
#include "kernels/norm/norm.hpp"
#include "kernels/stochastic_depth/stochastic_depth.hpp"

namespace choir::ops {
namespace {

constexpr std::int64_t kRanks = 2;

double elements(const Shape& shape) {
  return static_cast<double>(shape.count());
}

/// The operands of this rank, and the moments and sums of the other rank.
struct SplitNormOperands {
  Operand x, other, d_out, weight, bias, moments, sums, out, mean, rstd, d_x, d_weight, d_bias,
      workspace;
};

SplitNormForward forward_arguments(const SplitNormOperands& o, std::int64_t i) {
  return {.x = o.x[i],
          .moments = o.moments[i],
          .weight = o.weight[i],
          .bias = o.bias[i],
          .out = o.out[i],
          .mean = o.mean[i],
          .rstd = o.rstd[i]};
}
SplitNormBackward backward_arguments(const SplitNormOperands& o, std::int64_t i) {
  return {.d_out = o.d_out[i],
          .x = o.x[i],
          .weight = o.weight[i],
          .mean = o.mean[i],
          .rstd = o.rstd[i],
          .sums = o.sums[i],
          .width = kRanks * o.x[0].shape.back(),
          .d_x = o.d_x[i],
          .d_weight = o.d_weight[i],
          .d_bias = o.d_bias[i],
          .workspace = o.workspace[i]};
}

/// The same from the references. Backward uses only the sums of this rank's channels, as on the
/// device.
struct ExactSplitNorm {
  ExactSplitNorm(const SplitNormOperands& o, std::int64_t rows, std::int64_t width)
      : x(o.x.exact(0, rows * width)),
        other(o.other.exact(0, rows * width)),
        d_out(o.d_out.exact(0, rows * width)),
        weight(o.weight.exact(0, width)),
        bias(o.bias.exact(0, width)),
        moments(static_cast<std::size_t>(kRanks * 2 * rows)),
        sums(static_cast<std::size_t>(2 * rows)),
        out(x.size()),
        mean(static_cast<std::size_t>(rows)),
        rstd(mean.size()),
        d_x(x.size()),
        d_weight(o.d_weight.exact(0, width)),
        d_bias(o.d_bias.exact(0, width)) {
    const Shape shape{rows, width}, row{width}, pairs{rows, 2};
    const TensorView both = view_of(moments, {kRanks, rows, 2});
    ref::split_norm_moments(view_of(x, shape), both.slice(0, 1).reshaped(pairs));
    ref::split_norm_moments(view_of(other, shape), both.slice(1, 1).reshaped(pairs));
    ref::split_norm_forward({.x = view_of(x, shape),
                             .moments = both,
                             .weight = view_of(weight, row),
                             .bias = view_of(bias, row),
                             .out = view_of(out, shape),
                             .mean = view_of(mean, {rows}),
                             .rstd = view_of(rstd, {rows})});
    const SplitNormBackward b{.d_out = view_of(d_out, shape),
                              .x = view_of(x, shape),
                              .weight = view_of(weight, row),
                              .mean = view_of(mean, {rows}),
                              .rstd = view_of(rstd, {rows}),
                              .sums = view_of(sums, pairs),
                              .width = kRanks * width,
                              .d_x = view_of(d_x, shape),
                              .d_weight = view_of(d_weight, row),
                              .d_bias = view_of(d_bias, row)};
    ref::split_norm_sums(b);
    ref::split_norm_backward(b);
  }
  std::vector<double> x, other, d_out, weight, bias, moments, sums, out, mean, rstd, d_x, d_weight,
      d_bias;
};

void split_norm(OpBench& bench, std::int64_t rows, std::int64_t width) {
  const DType t = bench.dtype, s = bench.sums;
  const Shape shape{rows, width}, row{width}, pairs{rows, 2};
  BenchOperands data = bench.operands(elements(shape));
  const Operand x = data.normal(t, shape), other = data.normal(t, shape);
  const SplitNormOperands o{
      x,
      other,
      data.normal(t, shape),
      data.normal(t, row),
      data.normal(t, row),
      data.empty(s, {kRanks, rows, 2}),
      data.empty(s, pairs),
      data.empty(t, shape),
      data.empty(s, {rows}),
      data.empty(s, {rows}),
      data.empty(t, shape),
      data.normal(s, row),
      data.normal(s, row),
      data.empty(DType::u8, {split_norm_workspace(bench.stream, rows, width)})};
  const auto moments_of = [&](const TensorView& from, std::int64_t rank, const Stream& stream,
                              std::int64_t i) {
    split_norm_moments(stream, from, o.moments[i].slice(rank, 1).reshaped(pairs));
  };
  const auto moments = [&](const Stream& st, std::int64_t i) { moments_of(o.x[i], 0, st, i); };
  const auto forward = [&](const Stream& st, std::int64_t i) {
    split_norm_forward(st, forward_arguments(o, i));
  };
  const auto sums = [&](const Stream& st, std::int64_t i) {
    split_norm_sums(st, backward_arguments(o, i));
  };
  const auto backward = [&](const Stream& st, std::int64_t i) {
    split_norm_backward(st, backward_arguments(o, i));
  };
  for (std::int64_t i = 0; i < data.sets(); ++i) {
    moments(bench.stream, i), moments_of(o.other[i], 1, bench.stream, i);
    forward(bench.stream, i), sums(bench.stream, i), backward(bench.stream, i);
  }
  const ExactSplitNorm exact(o, rows, width);
  const auto each = static_cast<double>(width), all = static_cast<double>(rows);
  Agreement first, up, second, down;
  first.add(data.read(o.moments[0]), exact.moments, allowed_error(s, each));
  up.add(data.read(o.out[0]), exact.out, allowed_error(t, each));
  up.add(data.read(o.rstd[0]), exact.rstd, allowed_error(s, each));
  second.add(data.read(o.sums[0]), exact.sums, allowed_error(s, each));
  down.add(data.read(o.d_x[0]), exact.d_x, allowed_error(t, each));
  down.add(data.read(o.d_weight[0]), exact.d_weight, allowed_error(s, all));
  down.add(data.read(o.d_bias[0]), exact.d_bias, allowed_error(s, all));
  bench.row("split_norm_moments", shape, first, moments);
  bench.row("split_norm_forward", shape, up, forward);
  bench.row("split_norm_sums", shape, second, sums);
  bench.row("split_norm_backward", shape, down, backward);
}

void stochastic_depth(OpBench& bench, std::int64_t samples, std::int64_t tokens,
                      std::int64_t width) {
  const DType t = bench.dtype;
  const Shape shape{samples * tokens, width};
  const StochasticDepth args{.probability = 0.25, .key = {1, 2}, .tokens = tokens};
  BenchOperands data = bench.operands(3 * elements(shape));
  const Operand x = data.normal(t, shape), f = data.normal(t, shape), d = data.normal(t, shape),
                out = data.empty(t, shape), d_f = data.empty(t, shape), d_x = data.empty(t, shape);
  const auto forward = [&](const Stream& s, std::int64_t i) {
    stochastic_depth_forward(s, args, x[i], f[i], out[i]);
  };
  const auto backward = [&](const Stream& s, std::int64_t i) {
    stochastic_depth_backward(s, args, d[i], d_f[i], d_x[i]);
  };
  forward(bench.stream, 0), backward(bench.stream, 0);
  Agreement up, down;
  for (const Window w : windows_of(samples * tokens, tokens)) {
    const std::int64_t at = w.first * width, n = w.count * width;
    const Shape some{w.count, width};
    StochasticDepth here = args;
    here.first_row = w.first;
    std::vector<double> ex = x.exact(at, n), ef = f.exact(at, n), ed = d.exact(at, n),
                        eo(ex.size()), edf(ex.size()), edx(ex.size());
    ref::stochastic_depth_forward(here, view_of(ex, some), view_of(ef, some), view_of(eo, some));
    ref::stochastic_depth_backward(here, view_of(ed, some), view_of(edf, some), view_of(edx, some));
    up.add(data.read(out[0], at, n), eo, allowed_error(t, 2));
    down.add(data.read(d_f[0], at, n), edf, allowed_error(t, 0));
    down.add(data.read(d_x[0], at, n), edx, allowed_error(t, 0));
  }
  bench.row("stochastic_depth_forward", shape, up, forward);
  bench.row("stochastic_depth_backward", shape, down, backward);
}

void running_statistics(OpBench& bench, std::int64_t micro_batches, std::int64_t width) {
  if (bench.dtype != DType::f32) return;  // statistics are always f32
  const Shape shape{micro_batches, 2, width}, row{width};
  BenchOperands data = bench.operands(elements(shape));
  const Operand records = data.positive(DType::f32, shape), mean = data.normal(DType::f32, row),
                variance = data.positive(DType::f32, row),
                frames = data.empty(DType::f32, {micro_batches});
  std::vector<float> counts;
  for (std::int64_t m = 0; m < micro_batches; ++m)
    counts.push_back(m % 5 == 3 ? 1.0f : 1000.0f);  // some have no variance
  for (std::int64_t i = 0; i < data.sets(); ++i)
    data.device().copy_from_host(frames[i].data, counts.data(), frames[i].bytes());
  const auto call = [&](const Stream& s, std::int64_t i) {
    update_running_statistics(s, {records[i], frames[i], mean[i], variance[i]});
  };
  call(bench.stream, 0);
  std::vector<double> er = records.exact(0, records.count()), ef(counts.begin(), counts.end()),
                      em = mean.exact(0, width), ev = variance.exact(0, width);
  ref::update_running_statistics(
      {view_of(er, shape), view_of(ef, {micro_batches}), view_of(em, row), view_of(ev, row)});
  Agreement agreement;
  agreement.add(data.read(mean[0]), em, allowed_error(DType::f32, 0));
  agreement.add(data.read(variance[0]), ev, allowed_error(DType::f32, 0));
  bench.row("running_statistics", shape, agreement, call);
}

}  // namespace

void bench_blocks(OpBench& bench) {
  constexpr std::int64_t kMicroBatches = 32;
  const SpeechBenchShape& s = bench.shape.speech;
  if (s.samples == 0) return;
  const std::int64_t tokens = (s.frames + 7) / 8;
  split_norm(bench, s.samples * tokens, s.width / kRanks);
  stochastic_depth(bench, s.samples, tokens, s.width);
  running_statistics(bench, kMicroBatches, s.width);
}

}  // namespace choir::ops
