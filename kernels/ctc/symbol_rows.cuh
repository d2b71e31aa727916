#pragma once
// Rows of logits over the symbols of a speech model, one warp per row. Lane l has the columns l +
// 32 i, so that no sum depends on the address of a row. Rows are short (up to some thousands).
#include "kernels/cross_entropy/cross_entropy.cuh"

namespace choir::cuda {

constexpr int kSymbolThreads = 256;

/// The OnlineSum of a row of `count` logits, computed by a warp.
template <class T>
__device__ inline OnlineSum sum_of_row(const T* z, int count, int lane) {
  constexpr int kAhead = 8;
  OnlineSum own;
  for (int first = lane; first < count; first += kAhead * kWarp) {
    float values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int c = first + k * kWarp;
      values[k] = c < count ? to_float(z[c]) : -INFINITY;
    }
    own.add(values);
  }
  return join<kWarp>(own, false, nullptr);
}

constexpr int kRowWarps = kSymbolThreads / kWarp;
/// The row of this warp.
__device__ inline std::int64_t row_of_warp() {
  return std::int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
}

/// Floor: one read of the logits.
template <class T>
__global__ void __launch_bounds__(kSymbolThreads)
    best_symbols_kernel(const T* logits, std::int64_t rows, int columns, int vocabulary,
                        std::int32_t* best) {
  const std::int64_t row = row_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const T* z = logits + row * columns;
  float most = -INFINITY;
  int at = vocabulary;  // no symbol yet
#pragma unroll 8
  for (int c = lane; c < vocabulary; c += kWarp) {
    const float value = to_float(z[c]);
    if (value > most || (value == most && at == vocabulary)) most = value, at = c;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, most, offset);
    const int there = __shfl_xor_sync(kAllLanes, at, offset);
    if (other > most || (other == most && there < at)) most = other, at = there;
  }
  if (lane == 0) best[row] = at < vocabulary ? at : 0;
}

/// Floor: one read and one write of the logits.
template <class T>
__global__ void __launch_bounds__(kSymbolThreads)
    log_softmax_kernel(T* logits, std::int64_t rows, int columns, int vocabulary) {
  const std::int64_t row = row_of_warp();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  T* z = logits + row * columns;
  const OnlineSum sum = sum_of_row(z, vocabulary, lane);
  const float log_sum = logf(sum.exps);
#pragma unroll 8
  for (int c = lane; c < vocabulary; c += kWarp)
    z[c] = from_float<T>((to_float(z[c]) - sum.max) - log_sum);
}

}  // namespace choir::cuda
