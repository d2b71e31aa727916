#pragma once
// Sums, running sums and maxima over the lanes of a warp and the threads of a block, in a fixed
// order.
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
  template <class T>
  __device__ static T neutral() {
    return T(0);
  }
};

struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
  template <class T>
  __device__ static T neutral() {
    return -static_cast<T>(INFINITY);
  }
};

/// Reduces over `kLanes` neighbouring lanes (a power of two); every lane gets the result.
template <class Op, int kLanes = kWarp, class T>
__device__ inline T warp_reduce(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value = Op{}(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

/// Reduces over a block of kThreads (whole warps); every thread gets the result. `scratch` is
/// shared memory for kThreads / 32 values; two calls on the same scratch are safe.
template <class Op, int kThreads, class T>
__device__ inline T block_reduce(T value, T* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  value = warp_reduce<Op>(value);
  if constexpr (kWarps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // all threads have read the results of an earlier call
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < kWarps ? scratch[lane] : Op::template neutral<T>();
  return warp_reduce<Op>(value);
}

/// Returns the sum over the threads before this one, and in `all` the sum over the whole block.
/// `scratch` as for block_reduce().
template <int kThreads, class T>
__device__ inline T block_exclusive_sum(T value, T& all, T* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  T sum = value;  // inclusive sum of this lane
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(offset));
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // all threads have read the results of an earlier call
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  T before = 0;
  all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += scratch[w];
    all += scratch[w];
  }
  return before + sum - value;
}

}  // namespace choir::cuda
