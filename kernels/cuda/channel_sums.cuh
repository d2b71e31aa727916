#pragma once
// Sums of channels in two stages: pairs of channels per thread with lines of sums per block, and
// the total over the blocks. Access to two neighbouring elements per thread, or to one if they are
// not aligned, for kernels that keep many sums of a channel in registers; with packs of 16 bytes
// they would need four times as many registers. A warp still moves whole cache lines.

#include "kernels/cuda/access.cuh"

namespace choir::cuda {

template <class T, bool kPaired>
struct Pairs;

template <class T>
struct Pairs<T, false> {
  static constexpr int kWide = 1;
  using Raw = T;
  __device__ static Raw zero() { return from_float<T>(0.0f); }
  __device__ static Raw read(const T* from) { return *from; }
  __device__ static void unpack(const Raw& raw, float (&x)[1]) { x[0] = to_float(raw); }
  __device__ static void store(T* to, const float (&x)[1]) { *to = from_float<T>(x[0]); }
};

template <class T>
struct Pairs<T, true> {
  static constexpr int kWide = 2;
  struct alignas(2 * sizeof(T)) Raw {
    std::uint32_t word[sizeof(T) / 2];
  };
  __device__ static Raw zero() { return {}; }
  __device__ static Raw read(const T* from) {
    if constexpr (sizeof(T) == 2) {
      return {{*reinterpret_cast<const std::uint32_t*>(from)}};
    } else {
      const float2 two = *reinterpret_cast<const float2*>(from);
      return {{__float_as_uint(two.x), __float_as_uint(two.y)}};
    }
  }
  __device__ static void unpack(const Raw& raw, float (&x)[2]) {
    if constexpr (sizeof(T) == 2) {
      x[0] = ptx::unpack_low<T>(raw.word[0]), x[1] = ptx::unpack_high<T>(raw.word[0]);
    } else {
      x[0] = __uint_as_float(raw.word[0]), x[1] = __uint_as_float(raw.word[1]);
    }
  }
  __device__ static void store(T* to, const float (&x)[2]) {
    if constexpr (sizeof(T) == 2)
      *reinterpret_cast<std::uint32_t*>(to) = ptx::pack<T>(x[0], x[1]);
    else
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
  }
};

/// Host: true if rows of `elements` can be read in pairs from each of these addresses.
template <class T, class... P>
bool can_pair(std::int64_t elements, const P*... pointers) {
  return elements % 2 == 0 &&
         ((reinterpret_cast<std::uintptr_t>(pointers) % (2 * sizeof(P)) == 0) && ...);
}

/// Adds the sums of a block of kWarps warps, each with kLines sums of kWide channels per lane, over
/// the warps in order, and writes them as lines of channels, line i at to + i * stride. `shared`
/// has kWarps * kLines * kWide * 32 floats. All threads of the block call it.
template <int kWarps, int kLines, int kWide>
__device__ inline void join_lines(const float (&sum)[kLines][kWide], float* shared, float* to,
                                  std::int64_t stride, int lines, int channels) {
  constexpr int kTile = kWarp * kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < kLines; ++i)
#pragma unroll
    for (int k = 0; k < kWide; ++k)
      shared[(warp * kLines + i) * kTile + lane * kWide + k] = sum[i][k];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < lines * kTile; at += kWarps * kWarp) {
    const int c = at % kTile;
    if (c >= channels) continue;
    float total = shared[at];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) total += shared[w * kLines * kTile + at];
    to[at / kTile * stride + c] = total;
  }
}

// The second stage of sums for weights of a convolution: lines of channels, one per tap and one for
// the bias, for every block of rows. Floor: the partial sums once, mostly from the second-level
// cache.

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
  follow_earlier();
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
