#pragma once
// Depthwise convolution over time on the GPU. Forward and d_x are one kernel: a block takes a tile
// of channels and kDepthwiseFrames frames of a sample, its taps lie in shared memory as lines of
// channels, a thread sums kDepthwiseRun frames of a pack of channels and finds its neighbours'
// frames in the first-level cache. Gradients of the weight: a warp for every tap. Floor: forward 2
// element transfers, backward 3; reads from the first-level cache, K and 2 K + 2 a pack, stay below
// what memory takes for K up to about 13.
#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"

namespace choir::cuda {

constexpr int kDepthwiseWarps = 4, kDepthwiseThreads = kDepthwiseWarps * kWarp;
constexpr int kDepthwiseRun = 4, kDepthwiseFrames = 4 * kDepthwiseWarps * kDepthwiseRun;
constexpr int kDepthwiseMostLines = 16;  ///< warps of a block of the weight's gradient

template <class T, bool kPacked>
constexpr int kDepthwiseTile = kWarp* Access<T, kPacked>::kWide;

template <class T>
struct DepthwiseArguments {
  const T *x, *weight, *bias, *history;  ///< bias and history may be nullptr
  T* y;
  const std::int32_t* lengths;
  std::int64_t tokens, width, chunks;  ///< chunks of frames to a sample
  int taps, left;
  bool reversed;  ///< d_x: the taps from last to first
};

template <class T, bool kPacked>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_conv_kernel(DepthwiseArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kDepthwiseTile<T, kPacked>, kRun = kDepthwiseRun;
  auto* const lines = dynamic_shared<float>();  // [taps][kTile]
  const std::int64_t tile = std::int64_t{blockIdx.y} * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < a.taps * kTile; i += kDepthwiseThreads) {
    const int tap = i % a.taps, c = i / a.taps;
    if (tile + c >= a.width) break;
    lines[(a.reversed ? a.taps - 1 - tap : tap) * kTile + c] =
        to_float(a.weight[tile * a.taps + i]);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = tile + lane * kWide;
  if (c >= a.width) return;
  const std::int64_t b = blockIdx.x / a.chunks, start = blockIdx.x % a.chunks * kDepthwiseFrames;
  const std::int64_t valid = frames_of(a.lengths, b, a.tokens);
  const T* const x = a.x + b * a.tokens * a.width + c;
  const T* const history = a.history == nullptr ? nullptr : a.history + b * a.left * a.width + c;
  T* const y = a.y + b * a.tokens * a.width + c;
  float bias[kWide] = {};
  if (a.bias != nullptr) Wide::load(a.bias + c, bias);
  const std::int64_t end = min(start + kDepthwiseFrames, a.tokens);
  for (std::int64_t t = start + warp * kRun; t < end; t += kDepthwiseWarps * kRun) {
    float sum[kRun][kWide];
#pragma unroll
    for (int q = 0; q < kRun; ++q)
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum[q][k] = bias[k];
    if (t < valid) {
      for (int i = 0; i < a.taps; ++i) {
        typename Wide::Raw raw[kRun] = {};
#pragma unroll
        for (int q = 0; q < kRun; ++q) {
          const std::int64_t from = t + q + i - a.left;
          if (from >= 0 && from < valid)
            raw[q] = Wide::read(x + from * a.width);
          else if (from < 0 && history != nullptr)
            raw[q] = Wide::read(history + (a.left + from) * a.width);
        }
#pragma unroll
        for (int q = 0; q < kRun; ++q) {
          float v[kWide];
          Wide::unpack(raw[q], v);
#pragma unroll
          for (int k = 0; k < kWide; ++k) sum[q][k] += lines[i * kTile + lane * kWide + k] * v[k];
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kRun; ++q) {
      if (t + q >= end) break;
      if (t + q >= valid) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) sum[q][k] = 0;
      }
      Wide::store(y + (t + q) * a.width, sum[q]);
    }
  }
}

template <class T>
struct DepthwiseWeightArguments {
  const T *x, *d_y;
  const std::int32_t* lengths;
  std::int64_t tokens, width, rows, rows_per_block, stride;
  int taps, left;
  float* partials;  ///< [blocks][taps + 1][stride]
};

/// A warp sums one line after the other: d_y times x shifted by a tap, and d_y itself.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kDepthwiseMostLines* kWarp)
    depthwise_conv_weight_kernel(DepthwiseWeightArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, lines = a.taps + 1;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.y} * kDepthwiseTile<T, kPacked> + lane * kWide;
  if (c >= a.width) return;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  for (int line = static_cast<int>(threadIdx.x) / kWarp; line < lines; line += warps) {
    const std::int64_t shift = line < a.taps ? line - a.left : 0;
    float sum[kWide] = {};
    for (std::int64_t r = first; r < last;) {
      const std::int64_t b = r / a.tokens, start = b * a.tokens;
      const std::int64_t valid = frames_of(a.lengths, b, a.tokens);
      // Frames of this sample that count, in this block, and whose neighbour counts.
      const std::int64_t from = max(r - start, -shift);
      const std::int64_t to = min(min(last - start, valid), valid - shift);
#pragma unroll 4
      for (std::int64_t t = from; t < to; ++t) {
        const std::int64_t at = (start + t) * a.width + c;
        float d[kWide], v[kWide];
        Wide::load(a.d_y + at, d);
        if (line < a.taps) Wide::load(a.x + at + shift * a.width, v);
#pragma unroll
        for (int k = 0; k < kWide; ++k) sum[k] += line < a.taps ? d[k] * v[k] : d[k];
      }
      r = start + a.tokens;
    }
    store_many(a.partials + (blockIdx.x * std::int64_t{lines} + line) * a.stride + c, sum);
  }
}

}  // namespace choir::cuda
