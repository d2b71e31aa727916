// LayerNorm and RMSNorm: checks, dispatch, CPU twin and fp64 reference.

#include "kernels/norm/norm.hpp"

#include <algorithm>
#include <cmath>

#include "choir/ops/norm.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/fused_bias/fused_bias.hpp"

namespace choir::ops {

namespace {

void check_forward(const NormForward& args) {
  const DType dtype = args.residual.dtype, stats = sum_dtype_of(dtype);
  const std::int64_t n = args.residual.count(), rows = args.residual.shape.rows();
  const std::int64_t width = args.residual.shape.back();
  check_tensor(args.residual, dtype, n, "residual");
  check_optional(args.delta, dtype, n, "delta");
  check_tensor(args.weight, dtype, width, "weight");
  check_optional(args.bias, dtype, width, "bias");
  const bool layer = args.kind == Norm::layernorm;
  CHOIR_CHECK(layer || args.bias.empty(), "rmsnorm has no bias");
  if (!args.delta.empty()) check_tensor(args.sum, dtype, n, "sum");
  check_tensor(args.out, dtype, n, "out");
  if (layer) check_tensor(args.mean, stats, rows, "mean");
  check_tensor(args.rstd, stats, rows, "rstd");
}

void check_backward(const NormBackward& args) {
  const DType dtype = args.d_out.dtype, stats = sum_dtype_of(dtype);
  const std::int64_t n = args.d_out.count(), rows = args.d_out.shape.rows();
  const std::int64_t width = args.d_out.shape.back();
  check_tensor(args.d_out, dtype, n, "d_out");
  check_tensor(args.sum, dtype, n, "sum");
  check_tensor(args.weight, dtype, width, "weight");
  if (args.kind == Norm::layernorm) check_tensor(args.mean, stats, rows, "mean");
  check_tensor(args.rstd, stats, rows, "rstd");
  check_tensor(args.d_sum, dtype, n, "d_sum");
  check_tensor(args.d_weight, stats, width, "d_weight");
  check_optional(args.d_bias, stats, width, "d_bias");
}

/// Counts a pass over `transfers` tensors of rows.
void count_forward(const Stream& stream, const NormForward& args, double flops, double transfers) {
  stream.count(flops * static_cast<double>(args.residual.count()),
               transfers * as_bytes(args.residual) + as_bytes(args.weight) + as_bytes(args.bias) +
                   as_bytes(args.mean) + as_bytes(args.rstd));
}

void count_backward(const Stream& stream, const NormBackward& args, double flops,
                    double transfers) {
  stream.count(flops * static_cast<double>(args.d_out.count()),
               transfers * as_bytes(args.d_out) + as_bytes(args.weight) + as_bytes(args.mean) +
                   as_bytes(args.rstd) + 2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
}

void check_dropout(const Dropout& args, const TensorView& in) {
  check_tensor(args.in, in.dtype, in.count(), "in");
  check_tensor(args.out, in.dtype, in.count(), "out");
  CHOIR_CHECK(args.in.data == in.data, "the dropout of another tensor");
  CHOIR_CHECK(args.probability >= 0 && args.probability <= 1 - 0x1p-32, "probability {}",
              args.probability);
  CHOIR_CHECK(args.tokens >= 1 && args.first_column % 4 == 0, "{} tokens, features from {} on",
              args.tokens, args.first_column);
}

/// True on the null device if it plans for a GPU, whose fused kernels it counts.
bool plans_fused(const Stream& stream) {
  return stream.kind() == DeviceKind::null && stream.device().plans_for() == DeviceKind::cuda;
}

}  // namespace

std::int64_t norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::NormBackwardPlan(rows, width).workspace_bytes();
  return cpu::norm_workspace(rows, width);
}

void norm_forward(const Stream& stream, const NormForward& args) {
  check_forward(args);
  const bool adds = !args.delta.empty();
  count_forward(stream, args, adds ? 9 : 8, adds ? 4 : 2);
  if (on_cuda(stream)) return cuda::norm_forward(stream, args);
  if (!computes(stream)) return;
  with_element(args.residual.dtype, [&](auto t) { cpu::norm_forward<decltype(t)>(args); });
}

void norm_forward(const Stream& stream, const NormForward& args, const Dropout& dropout) {
  check_forward(args);
  CHOIR_CHECK(!args.delta.empty(), "dropout of a delta that is missing");
  check_dropout(dropout, args.delta);
  CHOIR_CHECK(dropout.out.data == args.delta.data, "dropout to another tensor");
  if (plans_fused(stream) || (on_cuda(stream) && cuda::norm_forward(stream, args, dropout)))
    return count_forward(stream, args, 11, 4);
  ops::dropout(stream, dropout);
  norm_forward(stream, args);
}

void norm_backward(const Stream& stream, const NormBackward& args) {
  check_backward(args);
  check_workspace(args.workspace,
                  norm_workspace(stream, args.d_out.shape.rows(), args.d_out.shape.back()));
  count_backward(stream, args, 14, args.accumulate ? 4 : 3);
  if (on_cuda(stream)) return cuda::norm_backward(stream, args);
  if (!computes(stream)) return;
  with_element(args.d_out.dtype, [&](auto t) { cpu::norm_backward<decltype(t)>(args); });
}

std::int64_t dropped_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  const std::int64_t apart =
      std::max(norm_workspace(stream, rows, width), bias_gradient_workspace(stream, rows, width));
  if (stream.device().plans_for() != DeviceKind::cuda) return apart;
  return std::max(apart, cuda::NormBackwardPlan(rows, width, 3).workspace_bytes());
}

void norm_backward(const Stream& stream, const NormBackward& args, const DroppedGradient& dropped) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  check_backward(args);
  check_dropout(dropped.dropout, args.d_sum);
  CHOIR_CHECK(dropped.dropout.out.data != args.d_sum.data, "the gradients of a sum and of delta");
  check_optional(dropped.d_bias, sum_dtype_of(args.d_out.dtype), width, "d_bias of the branch");
  check_workspace(dropped.workspace, dropped_norm_workspace(stream, rows, width));
  if (plans_fused(stream) || (on_cuda(stream) && cuda::norm_backward(stream, args, dropped))) {
    count_backward(stream, args, 16, args.accumulate ? 5 : 4);
    return stream.count(static_cast<double>(args.d_out.count()), 2 * as_bytes(dropped.d_bias));
  }
  NormBackward alone = args;
  alone.workspace = dropped.workspace;
  norm_backward(stream, alone);
  if (dropped.d_bias.empty()) return ops::dropout(stream, dropped.dropout);
  ops::dropout(stream, dropped.dropout, {dropped.d_bias, dropped.workspace});
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

template <class T>
struct ForwardRow {
  const T *residual, *delta, *weight, *bias;
  T *sum, *out;
  std::int64_t width;
  Sum<T> offset;
};

template <class T>
Sum<T> mean_of(const T* x, std::int64_t width) {
  Vec<T> total{};
  for_vectors<T>(0, width, [&](std::int64_t c, auto access) { total += access.load(x + c); });
  return sum_of_lanes(total) / static_cast<Sum<T>>(width);
}

template <class T>
Sum<T> add_and_mean(const ForwardRow<T>& row) {
  Vec<T> total{};
  for_vectors<T>(0, row.width, [&](std::int64_t c, auto access) {
    access.store(row.sum + c, access.load(row.residual + c) + access.load(row.delta + c));
    total += access.load(row.sum + c);  // the rounded value
  });
  return sum_of_lanes(total) / static_cast<Sum<T>>(row.width);
}

/// Mean of (x - mean)^2. Missing lanes are filled with the mean, so that they contribute 0.
template <class T>
Sum<T> mean_square(const T* x, Sum<T> mean, std::int64_t width) {
  Vec<T> total{};
  for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
    const Vec<T> d = access.load(x + c, mean) - mean;
    total += d * d;
  });
  return sum_of_lanes(total) / static_cast<Sum<T>>(width);
}

template <class T, bool kBias>
void normalise(const ForwardRow<T>& row, const T* x, Sum<T> mean, Sum<T> rstd) {
  for_vectors<T>(0, row.width, [&](std::int64_t c, auto access) {
    Vec<T> y = (access.load(x + c) - mean) * rstd * (access.load(row.weight + c) + row.offset);
    if constexpr (kBias) y += access.load(row.bias + c);
    access.store(row.out + c, y);
  });
}

template <class T>
struct BackwardRow {
  const T *d_out, *x, *weight;
  T* d_x;
  Sum<T> mean, rstd;
  std::int64_t width;
  Sum<T>*d_weight, *d_bias;
  Sum<T> offset;
};

template <class T, bool kLayer, bool kAccumulate, bool kBias>
void backward_row(const BackwardRow<T>& row) {
  using V = Vec<T>;
  const Sum<T> mean = row.mean, rstd = row.rstd;
  V sum_g{}, sum_gh{};
  for_vectors<T>(0, row.width, [&](std::int64_t c, auto access) {
    const V g = access.load(row.d_out + c) * (access.load(row.weight + c) + row.offset);
    const V h = (access.load(row.x + c) - mean) * rstd;
    if constexpr (kLayer) sum_g += g;
    sum_gh += g * h;  // g is 0 in missing lanes
  });
  const auto n = static_cast<Sum<T>>(row.width);
  const Sum<T> mean_g = kLayer ? sum_of_lanes(sum_g) / n : Sum<T>(0);
  const Sum<T> mean_gh = sum_of_lanes(sum_gh) / n;
  for_vectors<T>(0, row.width, [&](std::int64_t c, auto access) {
    const V dy = access.load(row.d_out + c);
    const V h = (access.load(row.x + c) - mean) * rstd;
    V dx = rstd * (dy * (access.load(row.weight + c) + row.offset) - mean_g - h * mean_gh);
    if constexpr (kAccumulate) dx += access.load(row.d_x + c);
    access.store(row.d_x + c, dx);
    access.store(row.d_weight + c, access.load(row.d_weight + c) + dy * h);
    if constexpr (kBias) access.store(row.d_bias + c, access.load(row.d_bias + c) + dy);
  });
}

template <class T>
auto choose_backward(bool layer, bool accumulate, bool bias) {
  using Row = void (*)(const BackwardRow<T>&);
  static constexpr Row kRows[] = {
      backward_row<T, false, false, false>, backward_row<T, false, false, true>,
      backward_row<T, false, true, false>,  backward_row<T, false, true, true>,
      backward_row<T, true, false, false>,  backward_row<T, true, false, true>,
      backward_row<T, true, true, false>,   backward_row<T, true, true, true>};
  return kRows[(layer ? 4 : 0) + (accumulate ? 2 : 0) + (bias ? 1 : 0)];
}

}  // namespace

std::int64_t norm_workspace(std::int64_t rows, std::int64_t width) {
  return RowBlocks(rows).count * 2 * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void norm_forward(const ops::NormForward& args) {
  const std::int64_t width = args.residual.shape.back(), rows = args.residual.shape.rows();
  const bool layer = args.kind == ops::Norm::layernorm, adds = !args.delta.empty();
  const bool bias = !args.bias.empty();
  const auto* residual = static_cast<const T*>(args.residual.data);
  auto* means = static_cast<Sum<T>*>(args.mean.data);
  auto* rstds = static_cast<Sum<T>*>(args.rstd.data);
  parallel_ranges(rows, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t at = r * width;
      ForwardRow<T> row{residual + at,
                        nullptr,
                        static_cast<const T*>(args.weight.data),
                        static_cast<const T*>(args.bias.data),
                        nullptr,
                        static_cast<T*>(args.out.data) + at,
                        width,
                        static_cast<Sum<T>>(args.offset)};
      const T* x = row.residual;
      Sum<T> mean = 0;
      if (adds) {
        row.delta = static_cast<const T*>(args.delta.data) + at;
        row.sum = static_cast<T*>(args.sum.data) + at;
        mean = add_and_mean(row);
        x = row.sum;
      } else if (layer) {
        mean = mean_of(x, width);
      }
      if (layer)
        means[r] = mean;
      else
        mean = 0;
      const Sum<T> rstd =
          1 / std::sqrt(mean_square(x, mean, width) + static_cast<Sum<T>>(args.eps));
      rstds[r] = rstd;
      bias ? normalise<T, true>(row, x, mean, rstd) : normalise<T, false>(row, x, mean, rstd);
    }
  });
}

template <class T>
void norm_backward(const ops::NormBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  const bool layer = args.kind == ops::Norm::layernorm, bias = !args.d_bias.empty();
  const RowBlocks blocks(args.d_out.shape.rows());
  const std::int64_t stride = RowBlocks::stride(width);
  const auto run = choose_backward<T>(layer, args.accumulate, bias);
  auto* partials = static_cast<Sum<T>*>(args.workspace.data);
  parallel_ranges(blocks.count, blocks.rows_per_block * width,
                  [&](std::int64_t first_block, std::int64_t last_block) {
                    for (std::int64_t b = first_block; b < last_block; ++b) {
                      Sum<T>* d_weight = partials + b * 2 * stride;
                      std::memset(d_weight, 0,
                                  static_cast<std::size_t>(2 * stride) * sizeof(Sum<T>));
                      for (std::int64_t r = blocks.first(b); r < blocks.last(b); ++r)
                        run({static_cast<const T*>(args.d_out.data) + r * width,
                             static_cast<const T*>(args.sum.data) + r * width,
                             static_cast<const T*>(args.weight.data),
                             static_cast<T*>(args.d_sum.data) + r * width,
                             layer ? static_cast<const Sum<T>*>(args.mean.data)[r] : Sum<T>(0),
                             static_cast<const Sum<T>*>(args.rstd.data)[r], width, d_weight,
                             d_weight + stride, static_cast<Sum<T>>(args.offset)});
                    }
                  });
  if (blocks.count == 0) return;
  add_partials(partials, blocks.count, 2 * stride, width, static_cast<Sum<T>*>(args.d_weight.data));
  if (bias)
    add_partials(partials + stride, blocks.count, 2 * stride, width,
                 static_cast<Sum<T>*>(args.d_bias.data));
}

template void norm_forward<double>(const ops::NormForward&);
template void norm_forward<float>(const ops::NormForward&);
template void norm_forward<bf16>(const ops::NormForward&);
template void norm_forward<f16>(const ops::NormForward&);
template void norm_backward<double>(const ops::NormBackward&);
template void norm_backward<float>(const ops::NormBackward&);
template void norm_backward<bf16>(const ops::NormBackward&);
template void norm_backward<f16>(const ops::NormBackward&);

}  // namespace choir::cpu

namespace choir::ref {

void norm_forward(const ops::NormForward& args) {
  const std::int64_t width = args.residual.shape.back(), rows = args.residual.shape.rows();
  const bool layer = args.kind == ops::Norm::layernorm;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* x = args.residual.as<double>() + r * width;
    if (!args.delta.empty()) {
      double* sum = args.sum.as<double>() + r * width;
      for (std::int64_t c = 0; c < width; ++c)
        sum[c] = x[c] + args.delta.as<double>()[r * width + c];
      x = sum;
    }
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; layer && c < width; ++c) mean += x[c] / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c)
      variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + args.eps);
    if (layer) args.mean.as<double>()[r] = mean;
    args.rstd.as<double>()[r] = rstd;
    for (std::int64_t c = 0; c < width; ++c)
      args.out.as<double>()[r * width + c] =
          (x[c] - mean) * rstd * (args.offset + args.weight.as<double>()[c]) +
          (args.bias.empty() ? 0 : args.bias.as<double>()[c]);
  }
}

void norm_backward(const ops::NormBackward& args) {
  const std::int64_t width = args.d_out.shape.back(), rows = args.d_out.shape.rows();
  const bool layer = args.kind == ops::Norm::layernorm;
  const auto weight = [&](std::int64_t c) { return args.offset + args.weight.as<double>()[c]; };
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* dy = args.d_out.as<double>() + r * width;
    const double* x = args.sum.as<double>() + r * width;
    double* dx = args.d_sum.as<double>() + r * width;
    const double mean = layer ? args.mean.as<double>()[r] : 0, rstd = args.rstd.as<double>()[r];
    double mean_g = 0, mean_gh = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double h = (x[c] - mean) * rstd;
      if (layer) mean_g += dy[c] * weight(c) / static_cast<double>(width);
      mean_gh += dy[c] * weight(c) * h / static_cast<double>(width);
    }
    for (std::int64_t c = 0; c < width; ++c) {
      const double h = (x[c] - mean) * rstd;
      dx[c] = (args.accumulate ? dx[c] : 0) + rstd * (dy[c] * weight(c) - mean_g - h * mean_gh);
      args.d_weight.as<double>()[c] += dy[c] * h;
      if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += dy[c];
    }
  }
}

}  // namespace choir::ref

namespace choir::ops {
namespace {

// LayerNorm and RMSNorm over shared channels: checks, dispatch, CPU twin and fp64 reference.

double elements(const TensorView& x) {
  return static_cast<double>(x.count());
}

void check_backward(const SplitNormBackward& a) {
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  const DType sum = sum_dtype_of(a.x.dtype);
  check_tensor(a.x, a.x.dtype, rows * width, "x");
  check_tensor(a.d_out, a.x.dtype, rows * width, "d_out");
  check_tensor(a.weight, a.x.dtype, width, "weight");
  check_tensor(a.mean, sum, rows, "mean");
  check_tensor(a.rstd, sum, rows, "rstd");
  check_tensor(a.sums, sum, 2 * rows, "sums");
}

}  // namespace

void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments,
                        Norm kind) {
  check_tensor(x, x.dtype, x.count(), "x");
  check_tensor(moments, sum_dtype_of(x.dtype), 2 * x.shape.rows(), "moments");
  stream.count(4 * elements(x), as_bytes(x) + as_bytes(moments));
  if (on_cuda(stream)) return cuda::split_norm_moments(stream, x, moments, kind);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::split_norm_moments<decltype(t)>(x, moments, kind); });
}

void split_norm_forward(const Stream& stream, const SplitNormForward& a) {
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  const DType sum = sum_dtype_of(a.x.dtype);
  check_tensor(a.x, a.x.dtype, rows * width, "x");
  check_tensor(a.out, a.x.dtype, rows * width, "out");
  check_tensor(a.weight, a.x.dtype, width, "weight");
  if (!a.bias.empty()) check_tensor(a.bias, a.x.dtype, width, "bias");
  check_tensor(a.moments, sum, a.moments.shape[0] * rows * 2, "moments");
  check_tensor(a.mean, sum, rows, "mean");
  check_tensor(a.rstd, sum, rows, "rstd");
  stream.count(4 * elements(a.x), 2 * as_bytes(a.x) + as_bytes(a.moments));
  if (on_cuda(stream)) return cuda::split_norm_forward(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_forward<decltype(t)>(a); });
}

std::int64_t split_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::NormBackwardPlan(rows, width).workspace_bytes();
  return cpu::split_norm_workspace(rows, width);
}

void split_norm_sums(const Stream& stream, const SplitNormBackward& a) {
  check_backward(a);
  stream.count(5 * elements(a.x), 2 * as_bytes(a.x));
  if (on_cuda(stream)) return cuda::split_norm_sums(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_sums<decltype(t)>(a); });
}

void split_norm_backward(const Stream& stream, const SplitNormBackward& a) {
  check_backward(a);
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  CHOIR_CHECK(a.width >= width, "{} channels of {}", width, a.width);
  check_tensor(a.d_x, a.x.dtype, rows * width, "d_x");
  check_tensor(a.d_weight, sum_dtype_of(a.x.dtype), width, "d_weight");
  if (!a.d_bias.empty()) check_tensor(a.d_bias, sum_dtype_of(a.x.dtype), width, "d_bias");
  check_workspace(a.workspace, split_norm_workspace(stream, rows, width));
  stream.count(10 * elements(a.x), 3 * as_bytes(a.x));
  if (on_cuda(stream)) return cuda::split_norm_backward(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_backward<decltype(t)>(a); });
}

}  // namespace choir::ops

namespace choir::cpu {

template <class T>
void split_norm_moments(const TensorView& x, const TensorView& moments, ops::Norm kind) {
  const std::int64_t width = x.shape.back();
  const bool centred = kind == ops::Norm::layernorm;
  auto* out = static_cast<Sum<T>*>(moments.data);
  parallel_ranges(x.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* row = static_cast<const T*>(x.data) + r * width;
      Vec<T> total{}, square{};
      if (centred)
        for_vectors<T>(0, width,
                       [&](std::int64_t c, auto access) { total += access.load(row + c); });
      const Sum<T> mean = sum_of_lanes(total) / static_cast<Sum<T>>(width);
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> d = access.load(row + c, mean) - mean;
        square += d * d;
      });
      out[2 * r] = mean;
      out[2 * r + 1] = sum_of_lanes(square);
    }
  });
}

template <class T>
void split_norm_forward(const ops::SplitNormForward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const std::int64_t ranks = args.moments.shape[0];
  const auto* moments = static_cast<const A*>(args.moments.data);
  const T *weight = static_cast<const T*>(args.weight.data),
          *bias = static_cast<const T*>(args.bias.data);
  const auto offset = static_cast<A>(args.offset);
  parallel_ranges(rows, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      A mean = 0, square = 0;
      for (std::int64_t k = 0; k < ranks; ++k) mean += moments[(k * rows + r) * 2];
      mean /= static_cast<A>(ranks);
      for (std::int64_t k = 0; k < ranks; ++k) {
        const A* m = moments + (k * rows + r) * 2;
        square += m[1] + static_cast<A>(width) * (m[0] - mean) * (m[0] - mean);
      }
      const A rstd =
          1 / std::sqrt(square / static_cast<A>(ranks * width) + static_cast<A>(args.eps));
      static_cast<A*>(args.mean.data)[r] = mean;
      static_cast<A*>(args.rstd.data)[r] = rstd;
      const T* x = static_cast<const T*>(args.x.data) + r * width;
      T* out = static_cast<T*>(args.out.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        Vec<T> y = (access.load(x + c) - mean) * rstd * (access.load(weight + c) + offset);
        if (bias != nullptr) y += access.load(bias + c);
        access.store(out + c, y);
      });
    }
  });
}

template <class T>
void split_norm_sums(const ops::SplitNormBackward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back();
  const T* weight = static_cast<const T*>(args.weight.data);
  const auto offset = static_cast<A>(args.offset);
  const bool centred = args.kind == ops::Norm::layernorm;
  auto* sums = static_cast<A*>(args.sums.data);
  parallel_ranges(args.x.shape.rows(), 2 * width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *x = static_cast<const T*>(args.x.data) + r * width,
              *d_out = static_cast<const T*>(args.d_out.data) + r * width;
      const A mean = static_cast<const A*>(args.mean.data)[r];
      Vec<T> sum{}, product{};
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(d_out + c) * (access.load(weight + c) + offset);
        sum += g;  // 0 in missing lanes
        product += g * (access.load(x + c) - mean);
      });
      sums[2 * r] = centred ? sum_of_lanes(sum) : A{0};
      sums[2 * r + 1] = sum_of_lanes(product) * static_cast<const A*>(args.rstd.data)[r];
    }
  });
}

std::int64_t split_norm_workspace(std::int64_t rows, std::int64_t width) {
  return RowBlocks(rows).count * 2 * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void split_norm_backward(const ops::SplitNormBackward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back();
  const RowBlocks blocks(args.x.shape.rows());
  const std::int64_t stride = RowBlocks::stride(width);
  const T* weight = static_cast<const T*>(args.weight.data);
  const auto offset = static_cast<A>(args.offset);
  const auto* sums = static_cast<const A*>(args.sums.data);
  auto* partials = static_cast<A*>(args.workspace.data);
  parallel_ranges(
      blocks.count, blocks.rows_per_block * width,
      [&](std::int64_t first_block, std::int64_t last_block) {
        for (std::int64_t b = first_block; b < last_block; ++b) {
          A *d_weight = partials + b * 2 * stride, *d_bias = d_weight + stride;
          std::memset(d_weight, 0, static_cast<std::size_t>(2 * stride) * sizeof(A));
          for (std::int64_t r = blocks.first(b); r < blocks.last(b); ++r) {
            const T *x = static_cast<const T*>(args.x.data) + r * width,
                    *d_out = static_cast<const T*>(args.d_out.data) + r * width;
            T* d_x = static_cast<T*>(args.d_x.data) + r * width;
            const A mean = static_cast<const A*>(args.mean.data)[r],
                    rstd = static_cast<const A*>(args.rstd.data)[r];
            const A mean_g = sums[2 * r] / static_cast<A>(args.width),
                    mean_gh = sums[2 * r + 1] / static_cast<A>(args.width);
            for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
              const Vec<T> dy = access.load(d_out + c), h = (access.load(x + c) - mean) * rstd;
              access.store(d_x + c,
                           rstd * (dy * (access.load(weight + c) + offset) - mean_g - h * mean_gh));
              access.store(d_weight + c, access.load(d_weight + c) + dy * h);
              access.store(d_bias + c, access.load(d_bias + c) + dy);
            });
          }
        }
      });
  if (blocks.count == 0) return;
  add_partials(partials, blocks.count, 2 * stride, width, static_cast<A*>(args.d_weight.data));
  if (args.d_bias.empty()) return;
  add_partials(partials + stride, blocks.count, 2 * stride, width,
               static_cast<A*>(args.d_bias.data));
}

#define CHOIR_INSTANTIATE(T)                                                            \
  template void split_norm_moments<T>(const TensorView&, const TensorView&, ops::Norm); \
  template void split_norm_forward<T>(const ops::SplitNormForward&);                    \
  template void split_norm_sums<T>(const ops::SplitNormBackward&);                      \
  template void split_norm_backward<T>(const ops::SplitNormBackward&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void split_norm_moments(const TensorView& x, const TensorView& moments, ops::Norm kind) {
  const std::int64_t width = x.shape.back();
  for (std::int64_t r = 0; r < x.shape.rows(); ++r) {
    const double* row = x.as<double>() + r * width;
    double sum = 0, square = 0;
    for (std::int64_t c = 0; c < width; ++c) sum += kind == ops::Norm::layernorm ? row[c] : 0;
    const double mean = sum / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c) square += (row[c] - mean) * (row[c] - mean);
    moments.as<double>()[2 * r] = mean;
    moments.as<double>()[2 * r + 1] = square;
  }
}

void split_norm_forward(const ops::SplitNormForward& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const std::int64_t ranks = args.moments.shape[0];
  const auto each = static_cast<double>(width), all = each * static_cast<double>(ranks);
  for (std::int64_t r = 0; r < rows; ++r) {
    // Computes the variance from the moments about 0, which differs from the formula of the
    // kernels.
    double sum = 0, square = 0;
    for (std::int64_t k = 0; k < ranks; ++k) {
      const double* m = args.moments.as<double>() + (k * rows + r) * 2;
      sum += each * m[0];
      square += m[1] + each * m[0] * m[0];
    }
    const double mean = sum / all, rstd = 1 / std::sqrt(square / all - mean * mean + args.eps);
    args.mean.as<double>()[r] = mean;
    args.rstd.as<double>()[r] = rstd;
    for (std::int64_t c = 0; c < width; ++c)
      args.out.as<double>()[r * width + c] = (args.x.as<double>()[r * width + c] - mean) * rstd *
                                                 (args.offset + args.weight.as<double>()[c]) +
                                             (args.bias.empty() ? 0 : args.bias.as<double>()[c]);
  }
}

void split_norm_sums(const ops::SplitNormBackward& args) {
  const std::int64_t width = args.x.shape.back();
  for (std::int64_t r = 0; r < args.x.shape.rows(); ++r) {
    double sum = 0, product = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double g =
          args.d_out.as<double>()[r * width + c] * (args.offset + args.weight.as<double>()[c]);
      sum += args.kind == ops::Norm::layernorm ? g : 0;
      product += g * (args.x.as<double>()[r * width + c] - args.mean.as<double>()[r]) *
                 args.rstd.as<double>()[r];
    }
    args.sums.as<double>()[2 * r] = sum;
    args.sums.as<double>()[2 * r + 1] = product;
  }
}

void split_norm_backward(const ops::SplitNormBackward& args) {
  const std::int64_t width = args.x.shape.back();
  const auto all = static_cast<double>(args.width);
  for (std::int64_t r = 0; r < args.x.shape.rows(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const double dy = args.d_out.as<double>()[r * width + c], rstd = args.rstd.as<double>()[r];
      const double h = (args.x.as<double>()[r * width + c] - args.mean.as<double>()[r]) * rstd;
      const double* sums = args.sums.as<double>() + 2 * r;
      args.d_x.as<double>()[r * width + c] =
          rstd *
          (dy * (args.offset + args.weight.as<double>()[c]) - sums[0] / all - h * sums[1] / all);
      args.d_weight.as<double>()[c] += dy * h;
      if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += dy;
    }
}

}  // namespace choir::ref
