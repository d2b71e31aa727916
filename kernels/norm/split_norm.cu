// LayerNorm and RMSNorm over channels of several ranks on the GPU; formulas and floors in
// kernels/norm/norm.hpp. A warp processes a row, which it reads in packs of 16 bytes and
// which stays in the L1 cache between its two readings. In backward a thread has two columns, so
// that sums over rows have a fixed order, and the numbers common to a row are in shared memory.
// Load and store instructions per 8 elements of bf16 (in parentheses an earlier version with one
// element each): moments 2 (16), forward 4 and a store (24 and 8), sums 3 (24), backward 8 with
// pairs, 4 stores, 4 reads of shared memory (16 loads beside 32 of the numbers common to a row, 8
// stores).

#include "kernels/norm/norm.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/sums/sums.hpp"

namespace choir::cuda {

constexpr int kSplitRows = kElementwiseThreads / kWarp;  // per block
constexpr int kSplitStaged = 64;  ///< rows of backward whose numbers are in shared memory at a time

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_moments_kernel(std::int64_t rows, int width, const T* x, float* moments,
                              bool centred) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t row = std::int64_t{blockIdx.x} * kSplitRows + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const T* const mine = x + row * width;
  float total = 0, square = 0;
  for (int c = lane * kWide; c < width && centred; c += kWarp * kWide) {
    float v[kWide];
    Wide::load(mine + c, v);
#pragma unroll
    for (int i = 0; i < kWide; ++i) total += v[i];
  }
  const float mean = warp_reduce<Sum>(total) / static_cast<float>(width);
  for (int c = lane * kWide; c < width; c += kWarp * kWide) {
    float v[kWide];
    Wide::load(mine + c, v);
#pragma unroll
    for (int i = 0; i < kWide; ++i) square += (v[i] - mean) * (v[i] - mean);
  }
  square = warp_reduce<Sum>(square);
  if (lane == 0) moments[2 * row] = mean, moments[2 * row + 1] = square;
}

template <class T>
struct SplitNormForwardArguments {
  const T* x;
  const float* moments;
  const T *weight, *bias;  ///< bias may be nullptr
  T* out;
  float *mean, *rstd;
  std::int64_t rows;
  int ranks, width;
  float eps, offset;  ///< offset: added to the weight
};

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_forward_kernel(SplitNormForwardArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t row = std::int64_t{blockIdx.x} * kSplitRows + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= a.rows) return;
  float mean = 0, square = 0;
  for (int k = 0; k < a.ranks; ++k) mean += a.moments[(k * a.rows + row) * 2];
  mean /= static_cast<float>(a.ranks);
  for (int k = 0; k < a.ranks; ++k) {
    const float* m = a.moments + (k * a.rows + row) * 2;
    square += m[1] + static_cast<float>(a.width) * (m[0] - mean) * (m[0] - mean);
  }
  const float all = static_cast<float>(a.ranks) * static_cast<float>(a.width);
  const float rstd = 1.0f / sqrtf(square / all + a.eps);
  if (lane == 0) a.mean[row] = mean, a.rstd[row] = rstd;
  for (int c = lane * kWide; c < a.width; c += kWarp * kWide) {
    float v[kWide], weight[kWide], bias[kWide] = {};
    Wide::load(a.x + row * a.width + c, v);
    Wide::load(a.weight + c, weight);
    if (a.bias != nullptr) Wide::load(a.bias + c, bias);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v[i] = (v[i] - mean) * rstd * (weight[i] + a.offset) + bias[i];
    Wide::store(a.out + row * a.width + c, v);
  }
}

template <class T>
struct SplitNormBackwardArguments {
  const T *d_out, *x, *weight;
  const float *mean, *rstd;
  float* sums;
  T* d_x;
  float* partials;  ///< per block: stride sums of d_weight, then stride sums of d_bias
  std::int64_t rows, rows_per_block, stride;
  int width;
  float over_width;  ///< 1 / channels of all ranks
  float offset;      ///< added to the weight
  bool centred;      ///< LayerNorm
};

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_sums_kernel(SplitNormBackwardArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t row = std::int64_t{blockIdx.x} * kSplitRows + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= a.rows) return;
  const float mean = a.mean[row];
  float sum = 0, product = 0;
  for (int c = lane * kWide; c < a.width; c += kWarp * kWide) {
    float d[kWide], v[kWide], weight[kWide];
    Wide::load(a.d_out + row * a.width + c, d), Wide::load(a.x + row * a.width + c, v);
    Wide::load(a.weight + c, weight);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float g = d[i] * (weight[i] + a.offset);
      sum += g;
      product += g * (v[i] - mean);
    }
  }
  sum = warp_reduce<Sum>(sum);
  product = warp_reduce<Sum>(product);
  if (lane == 0)
    a.sums[2 * row] = a.centred ? sum : 0.0f, a.sums[2 * row + 1] = product * a.rstd[row];
}

/// d_x = (d_out weight - sum / N - h product / N) rstd, h = (x - mean) rstd: the four numbers of a
/// row are mean, rstd, rstd sum / N and rstd product / N.
template <class T, bool kPaired>
__global__ void __launch_bounds__(kElementwiseThreads, 6)
    split_norm_backward_kernel(SplitNormBackwardArguments<T> a) {
  follow_earlier();
  using Pair = Pairs<T, kPaired>;
  constexpr int kWide = Pair::kWide;
  CHOIR_SHARED_ARRAY(float4, staged, kSplitStaged);
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  float* const partials = a.partials + blockIdx.x * 2 * a.stride;
  const int step = static_cast<int>(blockDim.x) * kWide;
  for (int from = 0; from < a.width; from += step) {
    const int c = from + static_cast<int>(threadIdx.x) * kWide;
    const bool mine = c < a.width;
    float weight[kWide] = {}, d_weight[kWide] = {}, d_bias[kWide] = {};
    if (mine) Pair::unpack(Pair::read(a.weight + c), weight);
    for (std::int64_t row = first; row < last; row += kSplitStaged) {
      const auto rows = static_cast<int>(min(std::int64_t{kSplitStaged}, last - row));
      __syncthreads();  // all threads have finished the previous rows
      for (int n = static_cast<int>(threadIdx.x); n < rows; n += static_cast<int>(blockDim.x)) {
        const float rstd = a.rstd[row + n], over = rstd * a.over_width;
        staged[n] = make_float4(a.mean[row + n], rstd, a.sums[2 * (row + n)] * over,
                                a.sums[2 * (row + n) + 1] * over);
      }
      __syncthreads();
#pragma unroll 4
      for (int n = 0; n < rows && mine; ++n) {
        const std::int64_t at = (row + n) * a.width + c;
        const float4 of_row = staged[n];
        float d[kWide], v[kWide];
        Pair::unpack(Pair::read(a.d_out + at), d), Pair::unpack(Pair::read(a.x + at), v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const float h = (v[i] - of_row.x) * of_row.y;
          d_weight[i] += d[i] * h;
          d_bias[i] += d[i];
          v[i] = d[i] * (weight[i] + a.offset) * of_row.y - of_row.z - h * of_row.w;
        }
        Pair::store(a.d_x + at, v);
      }
    }
#pragma unroll
    for (int i = 0; i < kWide && mine; ++i)
      partials[c + i] = d_weight[i], partials[a.stride + c + i] = d_bias[i];
  }
}

namespace {

/// One warp per row.
LaunchShape warps(std::int64_t rows) {
  return {dim3(static_cast<unsigned>(blocks_for(rows, kSplitRows))), kElementwiseThreads};
}

template <class T>
SplitNormBackwardArguments<T> backward_arguments(const ops::SplitNormBackward& args,
                                                 const NormBackwardPlan& plan) {
  return {args.d_out.as<T>(),
          args.x.as<T>(),
          args.weight.as<T>(),
          args.mean.as<float>(),
          args.rstd.as<float>(),
          args.sums.as<float>(),
          static_cast<T*>(args.d_x.data),
          static_cast<float*>(args.workspace.data),
          args.x.shape.rows(),
          plan.rows_per_block,
          plan.stride,
          static_cast<int>(args.x.shape.back()),
          1.0f / static_cast<float>(args.width),
          static_cast<float>(args.offset),
          args.kind == ops::Norm::layernorm};
}

}  // namespace

void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments,
                        ops::Norm kind) {
  if (x.count() == 0) return;
  with_element(x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(x.shape.back(), x.as<T>()), [&](auto packed) {
      launch(stream, "split_norm_moments", split_norm_moments_kernel<T, decltype(packed)::value>,
             warps(x.shape.rows()), x.shape.rows(), static_cast<int>(x.shape.back()), x.as<T>(),
             moments.as<float>(), kind == ops::Norm::layernorm);
    });
  });
}

void split_norm_forward(const Stream& stream, const ops::SplitNormForward& args) {
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t rows = args.x.shape.rows();
    const SplitNormForwardArguments<T> a{args.x.as<T>(),
                                         args.moments.as<float>(),
                                         args.weight.as<T>(),
                                         args.bias.empty() ? nullptr : args.bias.as<T>(),
                                         args.out.as<T>(),
                                         args.mean.as<float>(),
                                         args.rstd.as<float>(),
                                         rows,
                                         static_cast<int>(args.moments.shape[0]),
                                         static_cast<int>(args.x.shape.back()),
                                         static_cast<float>(args.eps),
                                         static_cast<float>(args.offset)};
    with_bool(can_pack<T>(a.width, a.x, a.weight, a.bias, a.out), [&](auto packed) {
      launch(stream, "split_norm_forward", split_norm_forward_kernel<T, decltype(packed)::value>,
             warps(rows), a);
    });
  });
}

void split_norm_sums(const Stream& stream, const ops::SplitNormBackward& args) {
  const NormBackwardPlan plan(args.x.shape.rows(), args.x.shape.back());
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto a = backward_arguments<T>(args, plan);
    with_bool(can_pack<T>(a.width, a.d_out, a.x, a.weight), [&](auto packed) {
      launch(stream, "split_norm_sums", split_norm_sums_kernel<T, decltype(packed)::value>,
             warps(a.rows), a);
    });
  });
}

void split_norm_backward(const Stream& stream, const ops::SplitNormBackward& args) {
  const NormBackwardPlan plan(args.x.shape.rows(), args.x.shape.back());
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto a = backward_arguments<T>(args, plan);
    with_bool(can_pair<T>(a.width, a.d_out, a.x, a.weight, a.d_x), [&](auto paired) {
      launch(stream, "split_norm_backward", split_norm_backward_kernel<T, decltype(paired)::value>,
             {dim3(static_cast<unsigned>(plan.blocks)), kElementwiseThreads}, a);
    });
  });
  add_partials(stream, {static_cast<float*>(args.workspace.data),
                        plan.blocks,
                        2 * plan.stride,
                        plan.stride,
                        args.x.shape.back(),
                        {args.d_weight.as<float>(),
                         args.d_bias.empty() ? nullptr : args.d_bias.as<float>()}});
}

}  // namespace choir::cuda
