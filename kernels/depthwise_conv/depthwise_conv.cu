// Depthwise convolution over time on the GPU. A thread has two neighbouring channels and processes
// kDepthwiseTaps taps at a time, so that every number it reads serves all of them from registers.
// Forward and d_x are one kernel: kDepthwiseTaps frames of outputs are computed from twice as many
// frames of inputs, with the taps in shared memory as lines of channels. Gradients of the weight:
// the window of inputs slides along the frames, and a warp keeps the sums of its taps and of the
// bias. Wider filters are processed in groups of taps. Floor: forward 2 element transfers, backward
// 3. Per element of bf16 with K = 9, loads and bytes from the L1 cache: forward 0.95 loads (of 4
// bytes, 2 channels), 3.8 bytes (with packs of 8 channels and every tap read again: 18 bytes, and
// 36 from shared memory instead of 4); gradient of the weight 1.25 loads, 5 bytes in runs of 16
// frames (before: 2.4 loads of 16 bytes, 38 bytes).

#include "kernels/depthwise_conv/depthwise_conv.hpp"

#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kDepthwiseWarps = 4, kDepthwiseThreads = kDepthwiseWarps * kWarp;
constexpr int kDepthwiseTaps = 9;  ///< taps in registers: all of a FastConformer's
/// Frames of a block of the forward kernel: each warp processes two runs of them.
constexpr int kDepthwiseFrames = 2 * kDepthwiseWarps * kDepthwiseTaps;

template <class T, bool kPaired>
constexpr int kDepthwiseTile = kWarp* Pairs<T, kPaired>::kWide;

template <class T>
struct DepthwiseArguments {
  const T *x, *weight, *bias, *history;  ///< bias and history may be nullptr
  T* y;
  const std::int32_t* lengths;
  std::int64_t tokens, width, chunks;  ///< chunks of frames per sample
  int taps, left;
  bool reversed;  ///< for d_x: the taps from last to first
};

/// The taps of a tile of channels as lines, followed by zeros.
template <class T, int kTile>
__device__ inline void fill_depthwise_taps(const DepthwiseArguments<T>& a, std::int64_t tile,
                                           int lines_used, float* lines) {
  for (int i = static_cast<int>(threadIdx.x); i < lines_used * kTile; i += kDepthwiseThreads) {
    const int line = i / kTile, c = i % kTile, tap = a.reversed ? a.taps - 1 - line : line;
    lines[i] =
        line < a.taps && tile + c < a.width ? to_float(a.weight[(tile + c) * a.taps + tap]) : 0.0f;
  }
  __syncthreads();
}

template <class T, bool kPaired>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_conv_kernel(DepthwiseArguments<T> a) {
  follow_earlier();
  using Pair = Pairs<T, kPaired>;
  constexpr int kWide = Pair::kWide, kTile = kDepthwiseTile<T, kPaired>, kTaps = kDepthwiseTaps;
  auto* const lines = dynamic_shared<float>();  // [taps, rounded up to whole groups][kTile]
  const int groups = (a.taps + kTaps - 1) / kTaps;
  const std::int64_t tile = std::int64_t{blockIdx.y} * kTile;
  fill_depthwise_taps<T, kTile>(a, tile, groups * kTaps, lines);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = tile + lane * kWide;
  if (c >= a.width) return;
  const std::int64_t b = blockIdx.x / a.chunks, start = blockIdx.x % a.chunks * kDepthwiseFrames;
  const std::int64_t valid = frames_of(a.lengths, b, a.tokens);
  const T* const x = a.x + b * a.tokens * a.width + c;
  const T* const history = a.history == nullptr ? nullptr : a.history + b * a.left * a.width + c;
  T* const y = a.y + b * a.tokens * a.width + c;
  const std::int64_t end = min(start + kDepthwiseFrames, a.tokens);
  for (std::int64_t t = start + warp * kTaps; t < end; t += kDepthwiseWarps * kTaps) {
    float sum[kTaps][kWide];
#pragma unroll
    for (int q = 0; q < kTaps; ++q)
#pragma unroll
      for (int k = 0; k < kWide; ++k)
        sum[q][k] = a.bias == nullptr ? 0.0f : to_float(a.bias[c + k]);
    for (int g = 0; t < valid && g < groups; ++g) {
      // Frame n of these contributes to output q with tap n - q. Numbers of frames have 32 bits:
      // for 64 bits ptxas takes twice as many registers on Blackwell, and 12 warps are too few.
      const int from = static_cast<int>(t) + g * kTaps - a.left, known = static_cast<int>(valid);
      typename Pair::Raw raw[2 * kTaps - 1];
#pragma unroll
      for (int n = 0; n < 2 * kTaps - 1; ++n) {
        raw[n] = Pair::zero();
        if (from + n >= 0 && from + n < known)
          raw[n] = Pair::read(x + std::int64_t{from + n} * a.width);
        else if (from + n < 0 && from + n >= -a.left && history != nullptr)
          raw[n] = Pair::read(history + std::int64_t{a.left + from + n} * a.width);
      }
#pragma unroll
      for (int n = 0; n < 2 * kTaps - 1; ++n) {
        float v[kWide];
        Pair::unpack(raw[n], v);
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
          if (n - i < 0 || n - i >= kTaps) continue;
#pragma unroll
          for (int k = 0; k < kWide; ++k)
            sum[n - i][k] += lines[(g * kTaps + i) * kTile + lane * kWide + k] * v[k];
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kTaps; ++q) {
      if (t + q >= end) break;
      if (t + q >= valid) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) sum[q][k] = 0;
      }
      Pair::store(y + (t + q) * a.width, sum[q]);
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

/// Adds up frames [from, to) of one sample: the products of d_y and x `shift` + 0, 1 ... frames
/// away, and d_y.
template <class T, bool kPaired>
__device__ inline void add_depthwise_run(
    const T* x, const T* d_y, std::int64_t width, std::int64_t from, std::int64_t to,
    std::int64_t shift, std::int64_t valid,
    float (&sum)[kDepthwiseTaps + 1][Pairs<T, kPaired>::kWide]) {
  using Pair = Pairs<T, kPaired>;
  constexpr int kWide = Pair::kWide, kTaps = kDepthwiseTaps;
  const auto input = [&](std::int64_t frame) {
    return frame >= 0 && frame < valid ? Pair::read(x + frame * width) : Pair::zero();
  };
  // Frame t + shift + k is in window[(t - from + k) % kTaps]; the indices repeat after kTaps
  // frames.
  float window[kTaps][kWide];
#pragma unroll
  for (int k = 0; k < kTaps - 1; ++k) Pair::unpack(input(from + shift + k), window[k]);
  for (std::int64_t t = from; t < to; t += kTaps) {
    typename Pair::Raw fresh[kTaps], d[kTaps];
#pragma unroll
    for (int u = 0; u < kTaps; ++u) {
      fresh[u] = input(t + u + shift + kTaps - 1);
      d[u] = t + u < to ? Pair::read(d_y + (t + u) * width) : Pair::zero();
    }
#pragma unroll
    for (int u = 0; u < kTaps; ++u) {
      float g[kWide];
      Pair::unpack(fresh[u], window[(u + kTaps - 1) % kTaps]);
      Pair::unpack(d[u], g);
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) sum[i][k] += g[k] * window[(u + i) % kTaps][k];
        sum[kTaps][k] += g[k];
      }
    }
  }
}

/// blockIdx.z selects a group of taps; each warp of a block has a run of its rows.
template <class T, bool kPaired>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_conv_weight_kernel(DepthwiseWeightArguments<T> a) {
  follow_earlier();
  constexpr int kWide = Pairs<T, kPaired>::kWide, kTaps = kDepthwiseTaps;
  constexpr int kTile = kDepthwiseTile<T, kPaired>;
  CHOIR_SHARED_ARRAY(float, shared, kDepthwiseWarps*(kTaps + 1) * kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.y} * kTile, c = tile + lane * kWide;
  const int tap = static_cast<int>(blockIdx.z) * kTaps;
  const std::int64_t stretch = blocks_for(a.rows_per_block, kDepthwiseWarps);
  const std::int64_t block = blockIdx.x * a.rows_per_block, first = block + warp * stretch;
  const std::int64_t last = min(min(first + stretch, block + a.rows_per_block), a.rows);
  float sum[kTaps + 1][kWide] = {};
  for (std::int64_t r = first; r < last && c < a.width;) {
    const std::int64_t b = r / a.tokens, start = b * a.tokens, at = start * a.width + c;
    const std::int64_t valid = frames_of(a.lengths, b, a.tokens);
    add_depthwise_run<T, kPaired>(a.x + at, a.d_y + at, a.width, r - start,
                                  min(last - start, valid), tap - a.left, valid, sum);
    r = start + a.tokens;
  }
  const int taps = min(kTaps, a.taps - tap);
  const auto channels = static_cast<int>(min(std::int64_t{kTile}, a.width - tile));
  float* const to = a.partials + (blockIdx.x * std::int64_t{a.taps + 1} + tap) * a.stride + tile;
  join_lines<kDepthwiseWarps, kTaps + 1, kWide>(sum, shared, to, a.stride, taps, channels);
  if (tap > 0) return;
  // The bias has the line after all taps.
  for (int i = static_cast<int>(threadIdx.x); i < channels; i += kDepthwiseThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kDepthwiseWarps; ++w)
      total += shared[(w * (kTaps + 1) + kTaps) * kTile + i];
    to[a.taps * a.stride + i] = total;
  }
}

namespace {

template <class T>
void convolve(const Stream& stream, const char* name, std::int64_t batch, DepthwiseArguments<T> a) {
  a.chunks = blocks_for(a.tokens, kDepthwiseFrames);
  const std::int64_t lines = blocks_for(a.taps, kDepthwiseTaps) * kDepthwiseTaps;
  with_bool(can_pair<T>(a.width, a.x, a.history, a.y), [&](auto paired) {
    constexpr bool kPaired = decltype(paired)::value;
    constexpr int kTile = kDepthwiseTile<T, kPaired>;
    launch(stream, name, depthwise_conv_kernel<T, kPaired>,
           {dim3(static_cast<unsigned>(batch * a.chunks),
                 static_cast<unsigned>(blocks_for(a.width, kTile))),
            kDepthwiseThreads, sizeof(float) * static_cast<std::size_t>(lines * kTile)},
           a);
  });
}

template <class T>
void weight_gradient(const Stream& stream, const ops::DepthwiseConvBackward& args) {
  const RowSumPlan plan = depthwise_conv_plan(args.x.shape);
  const auto taps = static_cast<int>(args.weight.shape[1]);
  auto* const partials = static_cast<float*>(args.workspace.data);
  const DepthwiseWeightArguments<T> a{args.x.as<T>(),
                                      args.d_y.as<T>(),
                                      args.lengths,
                                      args.x.shape[1],
                                      args.x.shape[2],
                                      args.x.shape.rows(),
                                      plan.rows_per_block,
                                      plan.stride,
                                      taps,
                                      static_cast<int>(args.left),
                                      partials};
  with_bool(can_pair<T>(a.width, a.x, a.d_y), [&](auto paired) {
    constexpr bool kPaired = decltype(paired)::value;
    launch(stream, "depthwise_conv_weight", depthwise_conv_weight_kernel<T, kPaired>,
           {dim3(static_cast<unsigned>(plan.blocks),
                 static_cast<unsigned>(blocks_for(a.width, kDepthwiseTile<T, kPaired>)),
                 static_cast<unsigned>(blocks_for(taps, kDepthwiseTaps))),
            kDepthwiseThreads},
           a);
  });
  add_channel_sums(stream, {partials, plan.blocks, plan.stride, a.width, taps,
                            args.d_weight.empty() ? nullptr : args.d_weight.as<float>(),
                            args.d_bias.empty() ? nullptr : args.d_bias.as<float>()});
}

}  // namespace

void depthwise_conv_forward(const Stream& stream, const ops::DepthwiseConv& args) {
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    convolve<T>(stream, "depthwise_conv", args.x.shape[0],
                {args.x.as<T>(), args.weight.as<T>(), static_cast<T*>(args.bias.data),
                 static_cast<T*>(args.history.data), args.y.as<T>(), args.lengths, args.x.shape[1],
                 args.x.shape[2], 0, static_cast<int>(args.weight.shape[1]),
                 static_cast<int>(args.left), false});
  });
}

void depthwise_conv_backward(const Stream& stream, const ops::DepthwiseConvBackward& args) {
  if (args.x.count() == 0) return;
  const auto taps = static_cast<int>(args.weight.shape[1]);
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    convolve<T>(
        stream, "depthwise_conv_backward", args.x.shape[0],
        {args.d_y.as<T>(), args.weight.as<T>(), nullptr, nullptr, args.d_x.as<T>(), args.lengths,
         args.x.shape[1], args.x.shape[2], 0, taps, taps - 1 - static_cast<int>(args.left), true});
    if (!args.d_weight.empty() || !args.d_bias.empty()) weight_gradient<T>(stream, args);
  });
}

}  // namespace choir::cuda
