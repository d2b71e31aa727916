#pragma once
// LayerNorm over channels of several ranks on the GPU; formulas in choir/ops/split_norm.hpp. A warp
// has a row, which stays in cache between its two readings; in backward a thread has columns, so
// that sums over rows have a fixed order.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

constexpr int kSplitRows = kElementwiseThreads / kWarp;  // of a block

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_moments_kernel(std::int64_t rows, int width, const T* x, float* moments) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kSplitRows + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  float total = 0, square = 0;
  for (int c = lane; c < width; c += kWarp) total += to_float(x[row * width + c]);
  const float mean = warp_reduce<Sum>(total) / static_cast<float>(width);
  for (int c = lane; c < width; c += kWarp) {
    const float d = to_float(x[row * width + c]) - mean;
    square += d * d;
  }
  square = warp_reduce<Sum>(square);
  if (lane == 0) moments[2 * row] = mean, moments[2 * row + 1] = square;
}

template <class T>
struct SplitNormForwardArguments {
  const T* x;
  const float* moments;
  const T *weight, *bias;
  T* out;
  float *mean, *rstd;
  std::int64_t rows;
  int ranks, width;
  float eps;
};

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_forward_kernel(SplitNormForwardArguments<T> a) {
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
  for (int c = lane; c < a.width; c += kWarp)
    a.out[row * a.width + c] =
        from_float<T>((to_float(a.x[row * a.width + c]) - mean) * rstd * to_float(a.weight[c]) +
                      to_float(a.bias[c]));
}

template <class T>
struct SplitNormBackwardArguments {
  const T *d_out, *x, *weight;
  const float *mean, *rstd;
  float* sums;
  T* d_x;
  float* partials;  ///< per block: stride sums of d_weight, stride of d_bias
  std::int64_t rows, rows_per_block, stride;
  int width;
  float over_width;  ///< 1 / channels of all ranks
};

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_sums_kernel(SplitNormBackwardArguments<T> a) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kSplitRows + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= a.rows) return;
  const float mean = a.mean[row];
  float sum = 0, product = 0;
  for (int c = lane; c < a.width; c += kWarp) {
    const std::int64_t at = row * a.width + c;
    const float g = to_float(a.d_out[at]) * to_float(a.weight[c]);
    sum += g;
    product += g * (to_float(a.x[at]) - mean);
  }
  sum = warp_reduce<Sum>(sum);
  product = warp_reduce<Sum>(product);
  if (lane == 0) a.sums[2 * row] = sum, a.sums[2 * row + 1] = product * a.rstd[row];
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_norm_backward_kernel(SplitNormBackwardArguments<T> a) {
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  float* partials = a.partials + blockIdx.x * 2 * a.stride;
  for (int c = static_cast<int>(threadIdx.x); c < a.width; c += static_cast<int>(blockDim.x)) {
    const float weight = to_float(a.weight[c]);
    float d_weight = 0, d_bias = 0;
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t at = row * a.width + c;
      const float dy = to_float(a.d_out[at]), rstd = a.rstd[row];
      const float h = (to_float(a.x[at]) - a.mean[row]) * rstd;
      a.d_x[at] = from_float<T>(rstd * (dy * weight - a.sums[2 * row] * a.over_width -
                                        h * a.sums[2 * row + 1] * a.over_width));
      d_weight += dy * h;
      d_bias += dy;
    }
    partials[c] = d_weight;
    partials[a.stride + c] = d_bias;
  }
}

}  // namespace choir::cuda
