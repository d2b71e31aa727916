// Batch normalisation and its running statistics on the GPU; formulas in
// kernels/norm/batch_norm.hpp. A block processes a tile of columns over a range of rows: its warps
// take rows in turn, and their sums are added in order. Floor per element: forward 3 element
// transfers (evaluation 2), backward 5; partial sums are 8 bytes per column for at least 32 rows.

#include "kernels/norm/batch_norm.hpp"

#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kBatchNormWarps = 8, kBatchNormThreads = kBatchNormWarps * kWarp;

template <class T, bool kPacked>
constexpr int kBatchNormTile = kWarp* Access<T, kPacked>::kWide;

struct BatchNormRows {
  std::int64_t rows, rows_per_block, width, stride;
  Divisor tokens;
  const std::int32_t* lengths;
  float* partials;  ///< [blocks][2][stride], then [2][stride]

  __device__ std::int64_t sample(std::int64_t row) const {
    return tokens.quotient(static_cast<std::uint32_t>(row));
  }
  __device__ bool counts(std::int64_t row) const {
    return lengths == nullptr || tokens.remainder(static_cast<std::uint32_t>(row)) <
                                     frames_of(lengths, sample(row), tokens.divisor);
  }
  /// The first unmasked row from `row` on, or `last`.
  __device__ std::int64_t first_counted(std::int64_t row, std::int64_t last) const {
    if (lengths == nullptr) return row;
    while (row < last && !counts(row)) row = (sample(row) + 1) * tokens.divisor;
    return row < last ? row : last;
  }
  /// The number of unmasked rows in [first, last).
  __device__ std::int64_t counted(std::int64_t first, std::int64_t last) const {
    return counted_rows(lengths, tokens.divisor, sample(first), first, last);
  }
};

/// Adds the two sums of all warps in order; thread t < kTile gets those of its column (see
/// `column`).
template <int kWide>
__device__ inline void join_warps(const float (&a)[kWide], const float (&b)[kWide], float* shared) {
  constexpr int kTile = kWarp * kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    shared[(warp * kWide + i) * kWarp + lane] = a[i];
    shared[((kBatchNormWarps + warp) * kWide + i) * kWarp + lane] = b[i];
  }
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTile; t += kBatchNormThreads) {
    float x = shared[t], y = shared[kBatchNormWarps * kTile + t];
#pragma unroll
    for (int w = 1; w < kBatchNormWarps; ++w) {
      x += shared[w * kTile + t];
      y += shared[(kBatchNormWarps + w) * kTile + t];
    }
    shared[t] = x, shared[kBatchNormWarps * kTile + t] = y;
  }
}

/// Mean and sum of squares around it for the rows of a block.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_moments_kernel(BatchNormRows a, const T* x) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kBatchNormTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, shared, 2 * kBatchNormWarps * kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile, c = tile + lane * kWide;
  const std::int64_t first = blockIdx.y * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  const std::int64_t origin = a.first_counted(first, last);
  float sum[kWide] = {}, squares[kWide] = {}, shift[kWide] = {};
  if (c < a.width && origin < last) {
    Wide::load(x + origin * a.width + c, shift);
    for (std::int64_t r = first + warp; r < last; r += kBatchNormWarps) {
      if (!a.counts(r)) continue;
      float v[kWide];
      Wide::load(x + r * a.width + c, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float d = v[i] - shift[i];
        sum[i] += d;
        squares[i] += d * d;
      }
    }
  }
  join_warps<kWide>(sum, squares, shared);
  const auto n = static_cast<float>(a.counted(first, last));
  float* const partials = a.partials + blockIdx.y * 2 * a.stride;
  for (int t = static_cast<int>(threadIdx.x); t < kTile; t += kBatchNormThreads) {
    const std::int64_t column =
        tile + t % kWarp * kWide + t / kWarp;  // value t / 32 of lane t % 32
    if (column >= a.width) continue;
    const float s = shared[t], m = n > 0 ? s / n : 0.0f;
    const float q = shared[kBatchNormWarps * kTile + t] - s * m;
    partials[column] = n > 0 ? to_float(x[origin * a.width + column]) + m : 0.0f;
    partials[a.stride + column] = q > 0 ? q : 0.0f;
  }
}

struct BatchNormStatistics {
  float *mean, *rstd, *running_mean, *running_variance;
  std::int64_t blocks;
  double eps;
  float* frames;  ///< nullptr: not written
};

// The second stage of sums over rows. Each lane has one column, so that a warp reads whole cache
// lines, and the warps take blocks in turn. With one thread per column it took 37 us for 48 blocks
// and 133 for 188 (H100), because every block waits for memory and for two divisions in double.
constexpr int kJoinWarps = 16, kJoinThreads = kJoinWarps * kWarp;

/// Adds the sums of the warps in order. Only the first warp gets the result; the values of the
/// others are undefined afterwards.
template <class S, int kCount>
__device__ inline void sum_over_warps(S (&sums)[kCount], S* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int k = 0; k < kCount; ++k) shared[k * kJoinThreads + warp * kWarp + lane] = sums[k];
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k)
#pragma unroll
    for (int w = 1; w < kJoinWarps; ++w) sums[k] += shared[k * kJoinThreads + w * kWarp + lane];
}

/// Statistics of a column from those of its blocks, in double and around the mean of the first
/// block, which is close enough to all others that nothing cancels.
template <class Unused = void>
__global__ void __launch_bounds__(kJoinThreads)
    batch_norm_join_kernel(BatchNormRows a, BatchNormStatistics to) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(double, shared, 3 * kJoinThreads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const bool exists = c < a.width;
  const double shift = exists && to.blocks > 0 ? a.partials[c] : 0.0;
  double sums[3] = {};  // rows; n (m - shift); squares around the shift
  if (exists) {
    for (std::int64_t b = warp; b < to.blocks; b += kJoinWarps) {
      const double away = a.partials[2 * b * a.stride + c] - shift;
      const double around = a.partials[(2 * b + 1) * a.stride + c];
      const std::int64_t first = b * a.rows_per_block;
      const auto rows =
          static_cast<double>(a.counted(first, min(first + a.rows_per_block, a.rows)));
      sums[0] += rows;
      sums[1] += rows * away;
      sums[2] += around + rows * away * away;
    }
  }
  sum_over_warps(sums, shared);
  if (warp != 0 || !exists) return;
  const double n = sums[0], away = n > 0 ? sums[1] / n : 0;
  const double squares = fmax(sums[2] - away * sums[1], 0.0);
  const double mean = n > 0 ? shift + away : 0;
  to.mean[c] = to.running_mean[c] = static_cast<float>(mean);
  to.rstd[c] = static_cast<float>(1 / sqrt((n > 0 ? squares / n : 0) + to.eps));
  to.running_variance[c] = static_cast<float>(n > 1 ? squares / (n - 1) : 0);
  if (c == 0 && to.frames != nullptr) *to.frames = static_cast<float>(n);
}

/// Evaluation: copies the given statistics.
template <class Unused = void>
__global__ void __launch_bounds__(kWarp)
    batch_norm_given_kernel(std::int64_t width, BatchNormStatistics to) {
  follow_earlier();
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  if (c >= width) return;
  to.mean[c] = to.running_mean[c];
  to.rstd[c] = static_cast<float>(1 / sqrt(to.running_variance[c] + to.eps));
}

template <class T>
struct BatchNormApply {
  const T *x, *d_y, *weight, *bias;  ///< forward: no d_y; backward: no bias
  const float *mean, *rstd;
  T* out;
};

/// Writes y, with the same tiles and blocks of rows as the moments.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kBatchNormThreads)
    batch_norm_apply_kernel(BatchNormRows a, BatchNormApply<T> p) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kBatchNormTile<T, kPacked> + lane * kWide;
  if (c >= a.width) return;
  const std::int64_t first = blockIdx.y * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  float mean[kWide], rstd[kWide], scale[kWide], bias[kWide];
  Wide::load(p.weight + c, scale), Wide::load(p.bias + c, bias);
  load_many(p.mean + c, mean), load_many(p.rstd + c, rstd);
#pragma unroll
  for (int i = 0; i < kWide; ++i) scale[i] *= rstd[i];
  for (std::int64_t r = first + warp; r < last; r += kBatchNormWarps) {
    float v[kWide] = {};
    if (a.counts(r)) {
      Wide::load(p.x + r * a.width + c, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] = (v[i] - mean[i]) * scale[i] + bias[i];
    }
    Wide::store(p.out + r * a.width + c, v);
  }
}

/// Sums of d_y h and of d_y.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_sums_kernel(BatchNormRows a, BatchNormApply<T> p) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kBatchNormTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, shared, 2 * kBatchNormWarps * kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile, c = tile + lane * kWide;
  const std::int64_t first = blockIdx.y * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  float products[kWide] = {}, sum[kWide] = {};
  if (c < a.width) {
    float mean[kWide], rstd[kWide];
    load_many(p.mean + c, mean), load_many(p.rstd + c, rstd);
    for (std::int64_t r = first + warp; r < last; r += kBatchNormWarps) {
      if (!a.counts(r)) continue;
      float v[kWide], d[kWide];
      Wide::load(p.x + r * a.width + c, v), Wide::load(p.d_y + r * a.width + c, d);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        products[i] += d[i] * ((v[i] - mean[i]) * rstd[i]);
        sum[i] += d[i];
      }
    }
  }
  join_warps<kWide>(products, sum, shared);
  float* const partials = a.partials + blockIdx.y * 2 * a.stride;
  for (int t = static_cast<int>(threadIdx.x); t < kTile; t += kBatchNormThreads) {
    const std::int64_t column = tile + t % kWarp * kWide + t / kWarp;
    if (column >= a.width) continue;
    partials[column] = shared[t];
    partials[a.stride + column] = shared[kBatchNormWarps * kTile + t];
  }
}

/// Writes the totals of both sums behind the partial sums, and adds them to the gradients that are
/// not frozen.
template <class Unused = void>
__global__ void __launch_bounds__(kJoinThreads)
    batch_norm_totals_kernel(BatchNormRows a, std::int64_t blocks, float* d_weight, float* d_bias) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, shared, 2 * kJoinThreads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  float sums[2] = {};
  if (c < a.width) {
#pragma unroll 4
    for (std::int64_t b = warp; b < blocks; b += kJoinWarps)
      for (int k = 0; k < 2; ++k) sums[k] += a.partials[(2 * b + k) * a.stride + c];
  }
  sum_over_warps(sums, shared);
  if (warp != 0 || c >= a.width) return;
  for (int k = 0; k < 2; ++k) a.partials[(2 * blocks + k) * a.stride + c] = sums[k];
  if (d_weight != nullptr) d_weight[c] += sums[0];
  if (d_bias != nullptr) d_bias[c] += sums[1];
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kBatchNormThreads)
    batch_norm_backward_kernel(BatchNormRows a, BatchNormApply<T> p, std::int64_t blocks) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kBatchNormTile<T, kPacked> + lane * kWide;
  if (c >= a.width) return;
  const std::int64_t first = blockIdx.y * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  const std::int64_t n = a.counted(0, a.rows);
  const float over_n = n > 0 ? 1.0f / static_cast<float>(n) : 0.0f;
  const float* const totals = a.partials + 2 * blocks * a.stride + c;
  // d x = scale (d - shift - (x - mean) slope) needs only these numbers per column.
  float mean[kWide], rstd[kWide], scale[kWide], shift[kWide], slope[kWide];
  Wide::load(p.weight + c, scale);
  load_many(p.mean + c, mean), load_many(p.rstd + c, rstd);
  load_many(totals, slope), load_many(totals + a.stride, shift);
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    scale[i] *= rstd[i], slope[i] *= over_n * rstd[i], shift[i] *= over_n;
  for (std::int64_t r = first + warp; r < last; r += kBatchNormWarps) {
    float v[kWide] = {};
    if (a.counts(r)) {
      float d[kWide];
      Wide::load(p.x + r * a.width + c, v), Wide::load(p.d_y + r * a.width + c, d);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        v[i] = scale[i] * (d[i] - shift[i] - (v[i] - mean[i]) * slope[i]);
    }
    Wide::store(p.out + r * a.width + c, v);
  }
}

namespace {

BatchNormRows rows_of(const RowSumPlan& plan, const TensorView& x, const std::int32_t* lengths,
                      std::int64_t tokens, const TensorView& workspace) {
  CHOIR_CHECK(x.shape.rows() <= kMostItems, "batch norm of {} rows, at most {}", x.shape.rows(),
              kMostItems);
  return {x.shape.rows(),
          plan.rows_per_block,
          x.shape.back(),
          plan.stride,
          Divisor(tokens),
          lengths,
          static_cast<float*>(workspace.data)};
}

/// Grid: blocks along the columns, then along the rows.
template <class T, bool kPacked>
LaunchShape tiles(const RowSumPlan& plan, std::int64_t width) {
  return {dim3(static_cast<unsigned>(blocks_for(width, kBatchNormTile<T, kPacked>)),
               static_cast<unsigned>(plan.blocks)),
          kBatchNormThreads};
}

LaunchShape columns(std::int64_t width, unsigned threads) {
  return {static_cast<unsigned>(blocks_for(width, kWarp)), threads};
}

}  // namespace

void batch_norm_forward(const Stream& stream, const ops::BatchNorm& args) {
  const std::int64_t width = args.x.shape.back();
  if (width == 0) return;
  const RowSumPlan plan = batch_norm_plan(args.x.shape.rows(), width);
  const BatchNormRows a = rows_of(plan, args.x, args.lengths, args.tokens, args.workspace);
  const BatchNormStatistics to{args.mean.as<float>(),
                               args.rstd.as<float>(),
                               args.running_mean.as<float>(),
                               args.running_variance.as<float>(),
                               plan.blocks,
                               args.eps,
                               args.frames.empty() ? nullptr : args.frames.as<float>()};
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const BatchNormApply<T> p{args.x.as<T>(), nullptr, args.weight.as<T>(), args.bias.as<T>(),
                              to.mean,        to.rstd, args.y.as<T>()};
    const bool packs = can_pack<T>(width, p.x, p.weight, p.bias, p.mean, p.rstd, p.out);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const LaunchShape shape = tiles<T, kPacked>(plan, width);
      if (args.training) {
        if (plan.blocks > 0)
          launch(stream, "batch_norm_moments", batch_norm_moments_kernel<T, kPacked>, shape, a,
                 p.x);
        launch(stream, "batch_norm_join", batch_norm_join_kernel<>, columns(width, kJoinThreads), a,
               to);
      } else {
        launch(stream, "batch_norm_given", batch_norm_given_kernel<>, columns(width, kWarp), width,
               to);
      }
      if (plan.blocks > 0)
        launch(stream, "batch_norm_apply", batch_norm_apply_kernel<T, kPacked>, shape, a, p);
    });
  });
}

void batch_norm_backward(const Stream& stream, const ops::BatchNormBackward& args) {
  if (args.x.count() == 0) return;
  const std::int64_t width = args.x.shape.back();
  const RowSumPlan plan = batch_norm_plan(args.x.shape.rows(), width);
  const BatchNormRows a = rows_of(plan, args.x, args.lengths, args.tokens, args.workspace);
  const auto gradient = [](const TensorView& x) { return x.empty() ? nullptr : x.as<float>(); };
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const BatchNormApply<T> p{args.x.as<T>(),  args.d_y.as<T>(),      args.weight.as<T>(),
                              nullptr,         args.mean.as<float>(), args.rstd.as<float>(),
                              args.d_x.as<T>()};
    const bool packs = can_pack<T>(width, p.x, p.d_y, p.weight, p.mean, p.rstd, a.partials, p.out);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const LaunchShape shape = tiles<T, kPacked>(plan, width);
      launch(stream, "batch_norm_sums", batch_norm_sums_kernel<T, kPacked>, shape, a, p);
      launch(stream, "batch_norm_totals", batch_norm_totals_kernel<>, columns(width, kJoinThreads),
             a, plan.blocks, gradient(args.d_weight), gradient(args.d_bias));
      launch(stream, "batch_norm_backward", batch_norm_backward_kernel<T, kPacked>, shape, a, p,
             plan.blocks);
    });
  });
}

// Running statistics on the GPU: one thread per channel and kind (mean, variance), micro-batches in
// order.

constexpr int kRunningThreads = 128;

struct RunningLines {
  const float *records, *frames;
  float *mean, *variance;
  std::int64_t count, width;
  double momentum;
  const double* apply;  ///< nullptr: 1
};

template <class Unused = void>
__global__ void __launch_bounds__(kRunningThreads) running_statistics_kernel(RunningLines a) {
  follow_earlier();
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunningThreads + threadIdx.x;
  if (i >= 2 * a.width || (a.apply != nullptr && *a.apply == 0)) return;
  float* const result = i < a.width ? a.mean + i : a.variance + (i - a.width);
  double sum = *result;
  for (std::int64_t m = 0; m < a.count; ++m) {
    if (a.frames[m] < 2) continue;
    sum = (1 - a.momentum) * sum + a.momentum * a.records[2 * m * a.width + i];
  }
  *result = static_cast<float>(sum);
}

void update_running_statistics(const Stream& stream, const ops::RunningUpdate& args) {
  const RunningLines lines{args.records.as<float>(),
                           args.frames.as<float>(),
                           args.mean.as<float>(),
                           args.variance.as<float>(),
                           args.frames.count(),
                           args.mean.count(),
                           args.momentum,
                           args.control != nullptr ? &args.control->apply : nullptr};
  if (lines.width == 0) return;
  launch(stream, "running_statistics", running_statistics_kernel<>,
         {static_cast<unsigned>(blocks_for(2 * lines.width, kRunningThreads)), kRunningThreads},
         lines);
}

}  // namespace choir::cuda
