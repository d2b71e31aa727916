#pragma once
// The second stage of sums for weights of a convolution: lines of channels, one per tap and one for
// the bias, for every block of rows. Floor: the partial sums once, mostly from the second-level
// cache.
#include "kernels/cuda/access.cuh"

namespace choir::cuda {

/// The total of tap i < taps is written to weight[c * taps + i], that of line `taps` to bias[c];
/// either may be nullptr.
struct ChannelSums {
  const float* partials = nullptr;
  std::int64_t blocks = 0, stride = 0, channels = 0;
  int taps = 0;
  float *weight = nullptr, *bias = nullptr;
};

constexpr int kChannelSumWarps = 8, kChannelSumThreads = kChannelSumWarps * kWarp;

/// One channel per lane; warp w adds the blocks w, w + kChannelSumWarps ..., then the warps are
/// added in order. blockIdx.y is the line.
template <class Unused = void>
__global__ void __launch_bounds__(kChannelSumThreads) add_channel_sums_kernel(ChannelSums a) {
  CHOIR_SHARED_ARRAY(float, sums, kChannelSumThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, line = static_cast<int>(blockIdx.y);
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + lane;
  const std::int64_t block_stride = (a.taps + 1) * a.stride;
  float sum = 0;
  if (c < a.channels) {
    const float* from = a.partials + line * a.stride + c;
#pragma unroll 4
    for (std::int64_t b = warp; b < a.blocks; b += kChannelSumWarps) sum += from[b * block_stride];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || c >= a.channels) return;
#pragma unroll
  for (int w = 1; w < kChannelSumWarps; ++w) sum += sums[w * kWarp + lane];
  float* const total = line < a.taps ? a.weight : a.bias;
  if (total != nullptr) total[line < a.taps ? c * a.taps + line : c] += sum;
}

inline void add_channel_sums(const Stream& stream, const ChannelSums& sums) {
  const auto tiles = static_cast<unsigned>(blocks_for(sums.channels, kWarp));
  launch(stream, "add_channel_sums", add_channel_sums_kernel<>,
         {dim3(tiles, static_cast<unsigned>(sums.taps) + 1), kChannelSumThreads}, sums);
}

}  // namespace choir::cuda
