// The strided convolution on the GPU. Forward: a block has a tile of channels and a few output
// frames, with the taps in shared memory as lines of channels. A thread sums kStridedRun
// neighbouring frequencies of a pack of channels, whose inputs it shares with its neighbours
// through the L1 cache. d_x: a thread gathers a square of 2 x 2 inputs from the 2 x 2 outputs that
// read it, and uses every tap once. Gradients of the weight: a thread has two channels, keeps the
// sums of all taps in registers and moves along the frequencies, where neighbouring outputs share a
// column of inputs. Floors are in kernels/strided_conv/strided_conv.hpp. Gradient of the weight,
// per output element of bf16: 4 loads (d_y, y and 6 inputs for two channels) and 16 bytes from the
// L1 cache; with one warp per tap 29 loads of 16 bytes for 8 channels, 58 bytes.
//
// Usually both gradients are needed, and one kernel computes them in one pass over memory
// (strided_conv_gradients_kernel).

#include "kernels/strided_conv/strided_conv.hpp"

#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kStridedWarps = 4, kStridedThreads = kStridedWarps * kWarp;
constexpr int kStridedRun = 4, kStridedRows = 4;
constexpr int kStridedLines = 10;  ///< lines of sums for the gradients: 9 taps and the bias

template <class T, bool kPacked>
constexpr int kStridedTile = kWarp* Access<T, kPacked>::kWide;

template <class T>
struct StridedArguments {
  const T *x, *weight, *bias, *d_y;  ///< forward: no d_y; backward: no bias
  T *y, *d_x;                        ///< backward: y only with relu
  const std::int32_t *in_lengths, *out_lengths;
  std::int64_t frames, out_rows;
  int frequencies, out_frequencies, channels;  ///< elements of a frame fit into 32 bits
  Divisor out_frames{1};                       ///< divisor of rows
  std::int64_t rows_per_block, stride;         ///< for the sums
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
  follow_earlier();
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

/// The gradient before the relu at output (b, t, f), channels from c on; 0 outside and at invalid
/// frames.
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

/// Computes inputs (2 t + u, 2 k + v) of d_x from outputs t, t + 1 and k, k + 1. Along each dim one
/// of the two inputs is read by the middle tap of output t (padding 1) or t + 1 (padding 2), the
/// other by tap 0 of t + 1 and tap 2 of t.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_input_kernel(StridedArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kStridedTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, lines, 9 * kTile);
  const int tile = static_cast<int>(blockIdx.y) * kTile;
  fill_taps<T, kTile>(a, tile, lines);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int c = tile + lane * kWide;
  if (c >= a.channels) return;
  const int single = a.pad == 1 ? 0 : 1;  // index in the pair, and the output that reads it
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
                // Tap with which output t + p reads the row and k + q the column; skipped if there
                // is none.
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

/// d_x of the layer with one input channel: one warp per input; its lanes share the channels.
template <class T>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_narrow_input_kernel(std::uint32_t inputs, Divisor frequencies, Divisor frames,
                                     StridedArguments<T> a) {
  follow_earlier();
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

/// The gradients of neighbouring outputs that a thread reads, and the inputs under their taps.
template <class T, bool kPaired, bool kNarrow>
struct StridedWindow {
  using Pair = Pairs<T, kPaired>;
  using Input = Pairs<T, kPaired && !kNarrow>;  // one input channel serves all
  static constexpr int kRun = 2;                // outputs read at a time; four are slower (H100)
  typename Pair::Raw d_y[kRun], y[kRun];
  typename Input::Raw x[3][2 * kRun];

  /// Reads outputs f, f + 1 ... of row r and the inputs that output f - 1 did not read. `x` of
  /// input row i begins at rows[i]; nullptr: the row is invalid.
  __device__ void read(const StridedArguments<T>& a, std::int64_t r, int f, int c,
                       const T* const (&rows)[3]) {
    const int width = kNarrow ? 1 : a.channels, channel = kNarrow ? 0 : c;
#pragma unroll
    for (int q = 0; q < kRun; ++q) {
      const std::int64_t at = (r * a.out_frequencies + f + q) * a.channels + c;
      const bool there = f + q < a.out_frequencies;
      d_y[q] = there ? Pair::read(a.d_y + at) : Pair::zero();
      y[q] = there && a.relu ? Pair::read(a.y + at) : Pair::zero();
    }
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
      for (int n = 0; n < 2 * kRun; ++n) {
        const int column = 2 * f + 1 + n - a.pad;
        const bool there = rows[i] != nullptr && column >= 0 && column < a.frequencies;
        x[i][n] = there ? Input::read(rows[i] + column * width + channel) : Input::zero();
      }
  }
};

/// Adds a row of outputs to the sums of 9 taps and of the bias. Neighbouring outputs share a column
/// of inputs, which stays in registers.
template <class T, bool kPaired, bool kNarrow>
__device__ inline void add_strided_row(const StridedArguments<T>& a, std::int64_t r, int c,
                                       const T* const (&rows)[3],
                                       float (&sum)[kStridedLines][Pairs<T, kPaired>::kWide]) {
  using Window = StridedWindow<T, kPaired, kNarrow>;
  using Input = typename Window::Input;
  constexpr int kWide = Pairs<T, kPaired>::kWide, kInputs = Input::kWide;
  float left[3][kInputs] = {};  // inputs under tap 0 of the next output; padding for the first one
  for (int f = 0; f < a.out_frequencies; f += Window::kRun) {
    Window at;
    at.read(a, r, f, c, rows);
#pragma unroll
    for (int q = 0; q < Window::kRun; ++q) {
      float g[kWide], y[kWide];
      Pairs<T, kPaired>::unpack(at.d_y[q], g), Pairs<T, kPaired>::unpack(at.y[q], y);
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        g[k] = a.relu && !(y[k] > 0.0f) ? 0.0f : g[k];
        sum[9][k] += g[k];
      }
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        float middle[kInputs], right[kInputs];
        Input::unpack(at.x[i][2 * q], middle), Input::unpack(at.x[i][2 * q + 1], right);
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
          const int n = kInputs == 1 ? 0 : k;
          sum[3 * i][k] += g[k] * left[i][n];
          sum[3 * i + 1][k] += g[k] * middle[n];
          sum[3 * i + 2][k] += g[k] * right[n];
        }
#pragma unroll
        for (int n = 0; n < kInputs; ++n) left[i][n] = right[n];
      }
    }
  }
}

/// Partial sums of a block of output frames, which its warps take in turn.
template <class T, bool kPaired, bool kNarrow>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_weight_kernel(StridedArguments<T> a) {
  follow_earlier();
  constexpr int kWide = Pairs<T, kPaired>::kWide, kTile = kWarp * kWide;
  CHOIR_SHARED_ARRAY(float, shared, kStridedWarps* kStridedLines* kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile = static_cast<int>(blockIdx.y) * kTile, c = tile + lane * kWide;
  const int width = kNarrow ? 1 : a.channels;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.out_rows);
  float sum[kStridedLines][kWide] = {};
  for (std::int64_t r = first + warp; r < last && c < a.channels; r += kStridedWarps) {
    const std::int64_t b = a.sample(r), t = r - b * a.out_frames.divisor;
    if (t >= frames_of(a.out_lengths, b, a.out_frames.divisor)) continue;
    const std::int64_t valid = frames_of(a.in_lengths, b, a.frames);
    const T* rows[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const std::int64_t row = 2 * t + i - a.pad;
      rows[i] =
          row < 0 || row >= valid ? nullptr : a.x + (b * a.frames + row) * a.frequencies * width;
    }
    add_strided_row<T, kPaired, kNarrow>(a, r, c, rows, sum);
  }
  const int channels = min(kTile, a.channels - tile);
  join_lines<kStridedWarps, kStridedLines, kWide>(
      sum, shared, a.partials + blockIdx.x * std::int64_t{kStridedLines} * a.stride + tile,
      a.stride, kStridedLines, channels);
}

// Both gradients in one pass, for two channels per thread. A thread moves along the squares of 2 x
// 2 inputs of frames 2 t and 2 t + 1. The outputs t, t + 1 and k, k + 1 are all that read the
// square (2 t, 2 k): they give its d_x, and its 9 products of an input and an output's gradient
// belong to the 9 taps, so that the gradient of the weight needs no other inputs. Per output and
// channel, 4 inputs and 4 elements of d_x, d_y and y move once: 20 bytes of bf16, 24 in the two
// kernels. d_y and y of row t + 1 are read again when they are row t, by the next warp of the block
// at the same time: 4 bytes from the caches. All accesses of a warp are 128 neighbouring bytes. A
// thread requests 64 bytes, those of two squares, before it uses the first; with 120 to 128
// registers 16 warps of a multiprocessor have 32 KiB in flight, of which 25 cover the latency.
// About 100 instructions per square and warp for 1280 bytes are 30 % of the issue slots at 3 TB/s.
// Predicted: 85 % of a copy.

/// Gradients of outputs and inputs that a thread reads for kRun neighbouring squares.
template <class T>
struct StridedSquares {
  using Pair = Pairs<T, true>;
  using Raw = typename Pair::Raw;
  static constexpr int kRun = 2;
  Raw d_y[2][kRun], y[2][kRun], x[2][2 * kRun];

  /// Reads outputs k + 1 ... k + kRun of rows t and t + 1, and inputs from 2 k on. `outputs` and
  /// `inputs` are the offsets of the rows; negative: the row is invalid.
  __device__ void read(const StridedArguments<T>& a, int k, int c, const std::int64_t (&outputs)[2],
                       const std::int64_t (&inputs)[2]) {
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int q = 0; q < kRun; ++q) {
        const std::int64_t at = outputs[p] + (k + 1 + q) * a.channels + c;
        const bool there = outputs[p] >= 0 && k + 1 + q < a.out_frequencies;
        d_y[p][q] = there ? Pair::read(a.d_y + at) : Pair::zero();
        y[p][q] = there && a.relu ? Pair::read(a.y + at) : Pair::zero();
      }
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int n = 0; n < 2 * kRun; ++n) {
        const bool there = inputs[u] >= 0 && 2 * k + n < a.frequencies;
        x[u][n] = there ? Pair::read(a.x + inputs[u] + (2 * k + n) * a.channels + c) : Pair::zero();
      }
  }
  /// The gradient before the relu of output k + 1 + q of row t + p.
  __device__ void gradient(const StridedArguments<T>& a, int p, int q, float (&g)[2]) const {
    float sign[2];
    Pair::unpack(d_y[p][q], g), Pair::unpack(y[p][q], sign);
#pragma unroll
    for (int e = 0; e < 2; ++e) g[e] = a.relu && !(sign[e] > 0.0f) ? 0.0f : g[e];
  }
};

/// d_x of the square (2 t, 2 k), and its terms of the 9 taps and of the bias. g: of outputs t + p,
/// k + q; `to`: its rows of d_x, nullptr where there is none.
template <class T, bool kCausal>
__device__ inline void add_square(const StridedArguments<T>& a, int k, const float (&g)[2][2][2],
                                  const float (&x)[2][2][2], const bool (&valid)[2],
                                  const float (&tap)[9][2], T* const (&to)[2],
                                  float (&sum)[kStridedLines][2]) {
  constexpr int kSingle = kCausal ? 1 : 0;  // as `single` in strided_conv_input_kernel
#pragma unroll
  for (int e = 0; e < 2; ++e) sum[9][e] += g[0][0][e];
#pragma unroll
  for (int u = 0; u < 2; ++u)
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      float d[2] = {};
#pragma unroll
      for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          if ((u == kSingle && p != kSingle) || (v == kSingle && q != kSingle)) continue;
          const int i = u == kSingle ? 1 : 2 - 2 * p, j = v == kSingle ? 1 : 2 - 2 * q;
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            d[e] += tap[3 * i + j][e] * g[p][q][e];
            sum[3 * i + j][e] += g[p][q][e] * x[u][v][e];
          }
        }
      if (to[u] == nullptr || 2 * k + v >= a.frequencies) continue;
      if (!valid[u]) d[0] = d[1] = 0;
      Pairs<T, true>::store(to[u] + (2 * k + v) * a.channels, d);
    }
}

template <class T, bool kCausal>
__global__ void __launch_bounds__(kStridedThreads)
    strided_conv_gradients_kernel(StridedArguments<T> a) {
  follow_earlier();
  using Squares = StridedSquares<T>;
  using Pair = typename Squares::Pair;
  constexpr int kTile = kWarp * 2, kRun = Squares::kRun;
  CHOIR_SHARED_ARRAY(float, shared, kStridedWarps* kStridedLines* kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile = static_cast<int>(blockIdx.y) * kTile, c = tile + lane * 2;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.out_rows);
  const std::int64_t in_row = std::int64_t{a.frequencies} * a.channels;
  const std::int64_t out_row = std::int64_t{a.out_frequencies} * a.channels;
  float tap[9][2] = {}, sum[kStridedLines][2] = {};
  for (int i = 0; i < 9; ++i)
    for (int e = 0; e < 2; ++e)
      if (c < a.channels) tap[i][e] = to_float(a.weight[(c + e) * 9 + i]);
  for (std::int64_t r = first + warp; r < last && c < a.channels; r += kStridedWarps) {
    const std::int64_t b = a.sample(r), t = r - b * a.out_frames.divisor;
    const std::int64_t in_valid = frames_of(a.in_lengths, b, a.frames);
    const std::int64_t out_valid = frames_of(a.out_lengths, b, a.out_frames.divisor);
    std::int64_t outputs[2], inputs[2];
    bool valid[2];
    T* to[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const std::int64_t row = 2 * t + u, at = (b * a.frames + row) * in_row;
      outputs[u] = t + u < out_valid ? (r + u) * out_row : -1;
      valid[u] = row < in_valid;
      inputs[u] = valid[u] ? at : -1;
      to[u] = row < a.frames ? a.d_x + at + c : nullptr;
    }
    float g[2][2][2];  // of outputs t + p and k + q
    Squares squares;
    squares.read(a, -1, c, outputs, {-1, -1});
    squares.gradient(a, 0, 0, g[0][0]), squares.gradient(a, 1, 0, g[1][0]);
    for (int k = 0; k < a.out_frequencies; k += kRun) {
      squares.read(a, k, c, outputs, inputs);
#pragma unroll
      for (int n = 0; n < kRun; ++n) {
        if (k + n >= a.out_frequencies) break;
        float x[2][2][2];
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          squares.gradient(a, u, n, g[u][1]);
          Pair::unpack(squares.x[u][2 * n], x[u][0]);
          Pair::unpack(squares.x[u][2 * n + 1], x[u][1]);
        }
        add_square<T, kCausal>(a, k + n, g, x, valid, tap, to, sum);
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
          for (int e = 0; e < 2; ++e) g[p][0][e] = g[p][1][e];
      }
    }
  }
  const int channels = min(kTile, a.channels - tile);
  join_lines<kStridedWarps, kStridedLines, 2>(
      sum, shared, a.partials + blockIdx.x * std::int64_t{kStridedLines} * a.stride + tile,
      a.stride, kStridedLines, channels);
}

namespace {

template <class T>
StridedArguments<T> sizes_of(const Shape& x, const Shape& y, bool causal) {
  CHOIR_CHECK(y[0] * y[1] <= kMostItems, "strided convolution to {} frames, at most {}",
              y[0] * y[1], kMostItems);
  CHOIR_CHECK(x[2] <= kMostItems / y[3], "strided convolution of {} frequencies to {} channels",
              x[2], y[3]);
  StridedArguments<T> a{};
  a.out_frames = Divisor(y[1]);
  a.frames = x[1], a.frequencies = static_cast<int>(x[2]);
  a.out_rows = y[0] * y[1], a.out_frequencies = static_cast<int>(y[2]);
  a.channels = static_cast<int>(y[3]);
  a.pad = causal ? 2 : 1, a.narrow = x[3] == 1;
  return a;
}

/// Grid: tiles of channels by blocks of `rows` output frames.
template <class T, bool kPacked>
dim3 tiles(const StridedArguments<T>& a, std::int64_t rows) {
  return dim3(static_cast<unsigned>(blocks_for(a.out_rows, rows)),
              static_cast<unsigned>(blocks_for(a.channels, kStridedTile<T, kPacked>)));
}

template <class T>
void input_gradient(const Stream& stream, const StridedArguments<T>& a, std::int64_t inputs) {
  if (a.narrow) {
    CHOIR_CHECK(inputs <= kMostItems, "strided convolution of {} values, at most {}", inputs,
                kMostItems);
    return launch(stream, "strided_conv_narrow_input", strided_conv_narrow_input_kernel<T>,
                  {elementwise_blocks(inputs * kWarp), kStridedThreads},
                  static_cast<std::uint32_t>(inputs), Divisor(a.frequencies), Divisor(a.frames), a);
  }
  with_bool(can_pack<T>(a.channels, a.d_y, a.y, a.d_x), [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    launch(stream, "strided_conv_input", strided_conv_input_kernel<T, kPacked>,
           {tiles<T, kPacked>(a, kStridedRows), kStridedThreads}, a);
  });
}

template <class T>
void weight_gradient(const Stream& stream, const StridedArguments<T>& a) {
  const bool pairs = can_pair<T>(a.channels, a.d_y, a.y) && (a.narrow || can_pair<T>(0, a.x));
  with_bool(pairs, [&](auto paired) {
    with_bool(a.narrow, [&](auto narrow) {
      constexpr bool kPaired = decltype(paired)::value, kNarrow = decltype(narrow)::value;
      constexpr int kTile = kWarp * Pairs<T, kPaired>::kWide;
      launch(stream, "strided_conv_weight", strided_conv_weight_kernel<T, kPaired, kNarrow>,
             {dim3(static_cast<unsigned>(blocks_for(a.out_rows, a.rows_per_block)),
                   static_cast<unsigned>(blocks_for(a.channels, kTile))),
              kStridedThreads},
             a);
    });
  });
}

/// Both gradients in one kernel; false if rows are not whole pairs of channels.
template <class T>
bool both_gradients(const Stream& stream, const StridedArguments<T>& a) {
  if (a.narrow || !can_pair<T>(a.channels, a.x, a.d_y, a.y, a.d_x)) return false;
  with_bool(a.pad == 2, [&](auto causal) {
    launch(stream, "strided_conv_gradients",
           strided_conv_gradients_kernel<T, decltype(causal)::value>,
           {dim3(static_cast<unsigned>(blocks_for(a.out_rows, a.rows_per_block)),
                 static_cast<unsigned>(blocks_for(a.channels, 2 * kWarp))),
            kStridedThreads},
           a);
  });
  return true;
}

}  // namespace

void strided_conv_forward(const Stream& stream, const ops::StridedConv& args) {
  if (args.y.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    auto a = sizes_of<T>(args.x.shape, args.y.shape, args.causal);
    a.x = args.x.as<T>(), a.weight = args.weight.as<T>(), a.bias = args.bias.as<T>();
    a.y = args.y.as<T>(), a.relu = args.relu;
    a.in_lengths = args.in_lengths, a.out_lengths = args.out_lengths;
    const bool can = can_pack<T>(a.channels, a.y, a.bias) && (a.narrow || can_pack<T>(0, a.x));
    with_bool(can, [&](auto packed) {
      with_bool(a.narrow, [&](auto narrow) {
        constexpr bool kPacked = decltype(packed)::value, kNarrow = decltype(narrow)::value;
        launch(stream, "strided_conv", strided_conv_kernel<T, kPacked, kNarrow>,
               {tiles<T, kPacked>(a, kStridedRows), kStridedThreads}, a);
      });
    });
  });
}

void strided_conv_backward(const Stream& stream, const ops::StridedConvBackward& args) {
  if (args.d_y.count() == 0) return;
  const RowSumPlan plan = strided_conv_plan(args.d_y.shape);
  const auto gradient = [](const TensorView& x) { return x.empty() ? nullptr : x.as<float>(); };
  with_element(args.d_y.dtype, [&](auto t) {
    using T = decltype(t);
    auto a = sizes_of<T>(args.x.shape, args.d_y.shape, args.causal);
    a.x = args.x.as<T>(), a.weight = args.weight.as<T>(), a.d_y = args.d_y.as<T>();
    a.relu = args.relu, a.y = args.relu ? args.y.as<T>() : nullptr;
    a.in_lengths = args.in_lengths, a.out_lengths = args.out_lengths;
    a.rows_per_block = plan.rows_per_block, a.stride = plan.stride;
    a.partials = static_cast<float*>(args.workspace.data);
    const bool inputs = !args.d_x.empty(), sums = !args.d_weight.empty() || !args.d_bias.empty();
    if (inputs) a.d_x = args.d_x.as<T>();
    if (!inputs || !sums || !both_gradients(stream, a)) {
      if (inputs) input_gradient(stream, a, args.x.count());
      if (sums) weight_gradient(stream, a);
    }
    if (!sums) return;
    add_channel_sums(stream, {a.partials, plan.blocks, plan.stride, a.channels, 9,
                              gradient(args.d_weight), gradient(args.d_bias)});
  });
}

}  // namespace choir::cuda
