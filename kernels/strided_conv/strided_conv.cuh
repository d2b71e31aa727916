#pragma once
// The strided convolution on the GPU. Forward: a block takes a tile of channels and a few output
// frames, with the taps in shared memory as lines of channels; a thread sums kStridedRun
// neighbouring frequencies of a pack of channels, whose inputs it shares with its neighbours by
// the first-level cache. d_x: a thread gathers a square of 2 x 2 inputs from the 2 x 2 outputs that
// read it, and uses every tap once. Gradients of the weight: a warp for every tap and one for the
// bias. Floors in kernels/strided_conv/strided_conv.hpp.
#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

constexpr int kStridedWarps = 4, kStridedThreads = kStridedWarps * kWarp;
constexpr int kStridedRun = 4, kStridedRows = 4;
constexpr int kStridedLines = 10;  ///< sums for the gradients: 9 taps and the bias

template <class T, bool kPacked>
constexpr int kStridedTile = kWarp* Access<T, kPacked>::kWide;

template <class T>
struct StridedArguments {
  const T *x, *weight, *bias, *d_y;  ///< forward: no d_y; backward: no bias
  T *y, *d_x;                        ///< backward: y only with relu
  const std::int32_t *in_lengths, *out_lengths;
  std::int64_t frames, out_rows;
  int frequencies, out_frequencies, channels;  ///< a frame's elements fit 32 bits
  Divisor out_frames{1};                       ///< of rows
  std::int64_t rows_per_block, stride;         ///< of the sums
  float* partials;                             ///< [blocks][kStridedLines][stride]
  int pad;
  bool narrow, relu;  ///< x has one channel

  __device__ std::int64_t sample(std::int64_t out_row) const {
    return out_frames.quotient(static_cast<std::uint32_t>(out_row));
  }
};

/// The taps of a tile of channels as 9 lines.
template <class T, int kTile>
__device__ inline void fill_taps(const StridedArguments<T>& a, int tile, float* lines) {
  for (int i = static_cast<int>(threadIdx.x); i < 9 * kTile; i += static_cast<int>(blockDim.x))
    if (tile + i / 9 < a.channels) lines[i % 9 * kTile + i / 9] = to_float(a.weight[tile * 9 + i]);
  __syncthreads();
}

template <class T, bool kPacked, bool kNarrow>
__global__ void __launch_bounds__(kStridedThreads) strided_conv_kernel(StridedArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kStridedTile<T, kPacked>, kRun = kStridedRun;
  CHOIR_SHARED_ARRAY(float, lines, 9 * kTile);
  const int tile = static_cast<int>(blockIdx.y) * kTile;
  fill_taps<T, kTile>(a, tile, lines);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int c = tile + lane * kWide, width = kNarrow ? 1 : a.channels;
  if (c >= a.channels) return;
  float bias[kWide];
  Wide::load(a.bias + c, bias);
  for (std::int64_t n = 0; n < kStridedRows; ++n) {
    const std::int64_t r = std::int64_t{blockIdx.x} * kStridedRows + n;
    if (r >= a.out_rows) return;
    const std::int64_t b = a.sample(r), t = r - b * a.out_frames.divisor;
    const bool counts = t < frames_of(a.out_lengths, b, a.out_frames.divisor);
    const std::int64_t valid = frames_of(a.in_lengths, b, a.frames);
    for (int f = warp * kRun; f < a.out_frequencies; f += kStridedWarps * kRun) {
      float sum[kRun][kWide];
#pragma unroll
      for (int q = 0; q < kRun; ++q)
#pragma unroll
        for (int k = 0; k < kWide; ++k) sum[q][k] = counts ? bias[k] : 0.0f;
#pragma unroll 1
      for (int i = 0; counts && i < 3; ++i) {
        const std::int64_t row = 2 * t + i - a.pad;
        if (row < 0 || row >= valid) continue;
        const T* const from = a.x + (b * a.frames + row) * a.frequencies * width;
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          const float* const w = lines + (3 * i + j) * kTile + lane * kWide;
          typename Wide::Raw raw[kRun] = {};
          float scalar[kRun] = {};
#pragma unroll
          for (int q = 0; q < kRun; ++q) {
            const int column = 2 * (f + q) + j - a.pad;
            if (column < 0 || column >= a.frequencies) continue;
            if constexpr (kNarrow)
              scalar[q] = to_float(from[column]);
            else
              raw[q] = Wide::read(from + column * width + c);
          }
#pragma unroll
          for (int q = 0; q < kRun; ++q) {
            float v[kWide];
            if constexpr (!kNarrow) Wide::unpack(raw[q], v);
#pragma unroll
            for (int k = 0; k < kWide; ++k) sum[q][k] += w[k] * (kNarrow ? scalar[q] : v[k]);
          }
        }
      }
#pragma unroll
      for (int q = 0; q < kRun; ++q) {
        if (f + q >= a.out_frequencies) break;
        if (a.relu) {
#pragma unroll
          for (int k = 0; k < kWide; ++k) sum[q][k] = sum[q][k] < 0.0f ? 0.0f : sum[q][k];
        }
        Wide::store(a.y + (r * a.out_frequencies + f + q) * a.channels + c, sum[q]);
      }
    }
  }
}

/// The gradient before the relu at output (b, t, f), channels from c; 0 outside and where no frame
/// counts.
template <class T, bool kPacked>
__device__ inline void strided_gradient(const StridedArguments<T>& a, std::int64_t b,
                                        std::int64_t t, std::int64_t valid, int f, int c,
                                        float* g) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
#pragma unroll
  for (int k = 0; k < kWide; ++k) g[k] = 0;
  if (t >= valid || f >= a.out_frequencies) return;
  const std::int64_t at = ((b * a.out_frames.divisor + t) * a.out_frequencies + f) * a.channels + c;
  Wide::load(a.d_y + at, g);
  if (!a.relu) return;
  float y[kWide];
  Wide::load(a.y + at, y);
#pragma unroll
  for (int k = 0; k < kWide; ++k) g[k] = y[k] > 0.0f ? g[k] : 0.0f;
}

/// Inputs (2 t + u, 2 k + v) of d_x from outputs t, t + 1 and k, k + 1. Along each dim one of the
/// two is read by the middle tap of output t (one of padding) or t + 1 (two), the other by tap 0 of
/// t + 1 and tap 2 of t.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_input_kernel(StridedArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kStridedTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, lines, 9 * kTile);
  const int tile = static_cast<int>(blockIdx.y) * kTile;
  fill_taps<T, kTile>(a, tile, lines);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int c = tile + lane * kWide;
  if (c >= a.channels) return;
  const int single = a.pad == 1 ? 0 : 1;  // which of two, and the output that reads it
  for (std::int64_t n = 0; n < kStridedRows; ++n) {
    const std::int64_t r = std::int64_t{blockIdx.x} * kStridedRows + n;
    if (r >= a.out_rows) return;
    const std::int64_t b = a.sample(r), t = r - b * a.out_frames.divisor;
    const std::int64_t valid = frames_of(a.in_lengths, b, a.frames);
    const std::int64_t out_valid = frames_of(a.out_lengths, b, a.out_frames.divisor);
    for (int k = warp; k < a.out_frequencies; k += kStridedWarps) {
      float g[2][2][kWide];
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int v = 0; v < 2; ++v)
          strided_gradient<T, kPacked>(a, b, t + u, out_valid, k + v, c, g[u][v]);
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const std::int64_t row = 2 * t + u;
          const int column = 2 * k + v;
          if (row >= a.frames || column >= a.frequencies) continue;
          float sum[kWide] = {};
          if (row < valid) {
#pragma unroll
            for (int p = 0; p < 2; ++p)
#pragma unroll
              for (int q = 0; q < 2; ++q) {
                // Tap by which output t + p reads the row, k + q the column; none: skipped.
                if ((u == single && p != single) || (v == single && q != single)) continue;
                const int i = u == single ? 1 : 2 - 2 * p, j = v == single ? 1 : 2 - 2 * q;
                const float* const w = lines + (3 * i + j) * kTile + lane * kWide;
#pragma unroll
                for (int e = 0; e < kWide; ++e) sum[e] += w[e] * g[p][q][e];
              }
          }
          Wide::store(a.d_x + ((b * a.frames + row) * a.frequencies + column) * a.channels + c,
                      sum);
        }
    }
  }
}

/// d_x of the layer with one input channel: a warp for every input, its lanes share the channels.
template <class T>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_narrow_input_kernel(std::uint32_t inputs, Divisor frequencies, Divisor frames,
                                     StridedArguments<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t step = gridDim.x * (blockDim.x / kWarp);
  for (auto n = static_cast<std::uint32_t>(global_thread() / kWarp); n < inputs; n += step) {
    const std::uint32_t frame = frequencies.quotient(n), b = frames.quotient(frame);
    const int f = static_cast<int>(frequencies.remainder(n));
    const auto row = static_cast<int>(frames.remainder(frame));
    const std::int64_t out_valid = frames_of(a.out_lengths, b, a.out_frames.divisor);
    float sum = 0;
    if (row < frames_of(a.in_lengths, b, a.frames)) {
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
          const int t = row + a.pad - i, k = f + a.pad - j;
          if (t % 2 != 0 || k % 2 != 0 || t < 0 || k < 0) continue;
          for (int c = lane; c < a.channels; c += kWarp) {
            float g;
            strided_gradient<T, false>(a, b, t / 2, out_valid, k / 2, c, &g);
            sum += g * to_float(a.weight[9 * c + 3 * i + j]);
          }
        }
    }
    sum = warp_reduce<Sum>(sum);
    if (lane == 0) a.d_x[n] = from_float<T>(sum);
  }
}

/// Partial sums of a block of output frames: warp i of d_y times the inputs under tap i, the last
/// one of d_y.
template <class T, bool kPacked, bool kNarrow>
__global__ void __launch_bounds__(kStridedLines* kWarp)
    strided_conv_weight_kernel(StridedArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            line = static_cast<int>(threadIdx.x) / kWarp;
  const int c = static_cast<int>(blockIdx.y) * kStridedTile<T, kPacked> + lane * kWide;
  if (c >= a.channels) return;
  const int width = kNarrow ? 1 : a.channels;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.out_rows);
  const bool tap = line < 9;
  float sum[kWide] = {};
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t b = a.sample(r), t = r - b * a.out_frames.divisor;
    const std::int64_t out_valid = frames_of(a.out_lengths, b, a.out_frames.divisor);
    const std::int64_t row = 2 * t + line / 3 - a.pad;
    const int shift = line % 3 - a.pad;
    if (t >= out_valid) continue;
    if (tap && (row < 0 || row >= frames_of(a.in_lengths, b, a.frames))) continue;
    const T* const x = a.x + (b * a.frames + row) * a.frequencies * width;
#pragma unroll 2
    for (int f = 0; f < a.out_frequencies; ++f) {
      const int column = 2 * f + shift;
      if (tap && (column < 0 || column >= a.frequencies)) continue;
      float g[kWide], v[kWide];
      strided_gradient<T, kPacked>(a, b, t, out_valid, f, c, g);
      if constexpr (kNarrow)
        v[0] = tap ? to_float(x[column]) : 1.0f;
      else if (tap)
        Wide::load(x + column * width + c, v);
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum[k] += tap ? g[k] * v[kNarrow ? 0 : k] : g[k];
    }
  }
  store_many(a.partials + (blockIdx.x * std::int64_t{kStridedLines} + line) * a.stride + c, sum);
}

}  // namespace choir::cuda
