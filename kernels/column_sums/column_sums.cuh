#pragma once
// The second stage of sums over rows. Floor: the partial sums are read once, mostly from the L2
// cache.
#include "kernels/column_sums/column_sums.hpp"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kPartialWarps = 32, kPartialThreads = kPartialWarps * kWarp;

/// One column per lane. Warp w adds the blocks w, w + kPartialWarps ..., then the sums of the warps
/// are added in order. blockIdx.y is the array.
__global__ void __launch_bounds__(kPartialThreads) add_partials_kernel(ColumnPartials a) {
  CHOIR_SHARED_ARRAY(float, sums, kPartialThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + lane;
  const float* from = a.partials + blockIdx.y * a.array_stride + c;
  float sum = 0;
  if (c < a.width) {
#pragma unroll 8
    for (std::int64_t b = warp; b < a.blocks; b += kPartialWarps) sum += from[b * a.block_stride];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || c >= a.width) return;
#pragma unroll
  for (int w = 1; w < kPartialWarps; ++w) sum += sums[w * kWarp + lane];
  float* total = (blockIdx.y == 0 ? a.total[0] : a.total[1]) + c;
  *total += sum;
}

}  // namespace choir::cuda
