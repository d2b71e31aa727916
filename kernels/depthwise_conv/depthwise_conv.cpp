#include "kernels/depthwise_conv/depthwise_conv.hpp"

#include <cstring>

#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_shapes(const TensorView& x, const TensorView& weight, std::int64_t left) {
  CHOIR_CHECK(x.shape.rank() == 3 && weight.shape.rank() == 2 && weight.shape[0] == x.shape[2],
              "depthwise convolution of {} with weight {}", to_string(x.shape),
              to_string(weight.shape));
  const std::int64_t taps = weight.shape[1];
  CHOIR_CHECK(taps >= 1 && taps <= kWidestDepthwise, "{} taps, at most {}", taps, kWidestDepthwise);
  CHOIR_CHECK(left >= 0 && left < taps, "{} frames to the left of {} taps", left, taps);
  check_tensor(x, x.dtype, x.count(), "x");
  check_tensor(weight, x.dtype, weight.count(), "weight");
}

}  // namespace

std::int64_t depthwise_conv_workspace(const Stream& stream, const Shape& x, std::int64_t taps) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::depthwise_conv_workspace(x, taps);
  return cpu::depthwise_conv_workspace(x, taps);
}

void depthwise_conv_forward(const Stream& stream, const DepthwiseConv& args) {
  const DType dtype = args.x.dtype;
  check_shapes(args.x, args.weight, args.left);
  const std::int64_t channels = args.x.shape[2];
  check_optional(args.bias, dtype, channels, "bias");
  check_tensor(args.y, dtype, args.x.count(), "y");
  check_optional(args.history, dtype, args.x.shape[0] * args.left * channels, "history");
  CHOIR_CHECK(args.x.data != args.y.data, "depthwise convolution does not run in place");
  stream.count(2.0 * static_cast<double>(args.weight.shape[1] * args.x.count()),
               as_bytes(args.x) + as_bytes(args.history) + as_bytes(args.y) +
                   as_bytes(args.weight) + as_bytes(args.bias));
  if (on_cuda(stream)) return cuda::depthwise_conv_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::depthwise_conv_forward<decltype(t)>(args); });
}

void depthwise_conv_backward(const Stream& stream, const DepthwiseConvBackward& args) {
  const DType dtype = args.x.dtype, sums = sum_dtype_of(dtype);
  check_shapes(args.x, args.weight, args.left);
  const std::int64_t channels = args.x.shape[2], taps = args.weight.shape[1];
  check_tensor(args.d_y, dtype, args.x.count(), "d_y");
  check_tensor(args.d_x, dtype, args.x.count(), "d_x");
  check_optional(args.d_weight, sums, channels * taps, "d_weight");
  check_optional(args.d_bias, sums, channels, "d_bias");
  CHOIR_CHECK(args.d_x.data != args.d_y.data && args.d_x.data != args.x.data,
              "depthwise convolution does not run in place");
  check_workspace(args.workspace, depthwise_conv_workspace(stream, args.x.shape, taps));
  stream.count((args.d_weight.empty() ? 2.0 : 4.0) * static_cast<double>(taps * args.x.count()),
               as_bytes(args.d_y) + as_bytes(args.d_x) +
                   (args.d_weight.empty() ? 0 : as_bytes(args.x)) + as_bytes(args.weight) +
                   2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::depthwise_conv_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::depthwise_conv_backward<decltype(t)>(args); });
}

}  // namespace choir::ops

// The convolution is computed in tiles of frames and channels. The frames that a tile reads are
// converted into a buffer, with zeros for invalid frames, so that the inner loops handle neither
// edges nor element types.

namespace choir::cpu {
namespace {

constexpr std::int64_t kTile = 32;     // frames
constexpr std::int64_t kGroup = 8;     // frames whose sums stay in registers
constexpr std::int64_t kTapGroup = 9;  // taps whose sums stay in registers
constexpr std::int64_t kWide = 16;     // vectors of channels
constexpr std::int64_t kTaps = ops::kWidestDepthwise;
constexpr std::int64_t kBuffer = kTile + kGroup + kTaps + kTapGroup;

/// A range of frames of one sample and one vector of channels.
template <class T>
struct Source {
  const T* frames = nullptr;   ///< address of frame 0
  const T* history = nullptr;  ///< address of frame -left, or nullptr
  std::int64_t left = 0, valid = 0, width = 0;
};

/// buffer[m] = frame first + m for m < count, or 0 if it is invalid.
template <class T, class Access>
void widen(const Source<T>& from, std::int64_t first, std::int64_t count, const Access& access,
           Vec<T>* buffer) {
  for (std::int64_t m = 0; m < count; ++m) {
    const std::int64_t t = first + m;
    if (t >= 0 && t < from.valid)
      buffer[m] = access.load(from.frames + t * from.width);
    else if (t < 0 && from.history != nullptr && t >= -from.left)
      buffer[m] = access.load(from.history + (from.left + t) * from.width);
    else
      buffer[m] = Vec<T>{};
  }
}

/// out[q] = start + sum over i of taps[i] in[q + i], q < kGroup.
template <class V>
inline void convolve(const V* in, const V* taps, std::int64_t count, V start, V* out) {
  V sum[kGroup];
#pragma GCC unroll 8
  for (auto& s : sum) s = start;
  for (std::int64_t i = 0; i < count; ++i) {
    const V w = taps[i];
#pragma GCC unroll 8
    for (std::int64_t q = 0; q < kGroup; ++q) sum[q] += w * in[i + q];
  }
#pragma GCC unroll 8
  for (std::int64_t q = 0; q < kGroup; ++q) out[q] = sum[q];
}

/// Computes y [kTile] for the frames of a tile; frames from `valid` on get 0.
template <class T, class Access>
void convolve_tile(const Vec<T>* buffer, const Vec<T>* taps, std::int64_t count, Vec<T> start,
                   std::int64_t frames, std::int64_t valid, const Access& access, T* y,
                   std::int64_t width) {
  for (std::int64_t q = 0; q < frames; q += kGroup) {
    Vec<T> out[kGroup];
    convolve(buffer + q, taps, count, start, out);
    for (std::int64_t k = 0; k < kGroup && q + k < frames; ++k)
      access.store(y + (q + k) * width, q + k < valid ? out[k] : Vec<T>{});
  }
}

/// d_weight[i][c] += sum over q of g[q] x[q + i], and d_bias[c] += sum of g; lines of `stride`.
template <class V, class A, class Access>
void correlate_tile(const V* x, const V* g, std::int64_t frames, std::int64_t taps,
                    const Access& access, A* sums, std::int64_t stride) {
  for (std::int64_t i0 = 0; i0 < taps; i0 += kTapGroup) {
    V sum[kTapGroup] = {};
    for (std::int64_t q = 0; q < frames; ++q) {
      const V gradient = g[q];
#pragma GCC unroll 9
      for (std::int64_t i = 0; i < kTapGroup; ++i) sum[i] += gradient * x[q + i0 + i];
    }
    const std::int64_t count = taps - i0 < kTapGroup ? taps - i0 : kTapGroup;
    for (std::int64_t i = 0; i < count; ++i) {
      A* at = sums + (i0 + i) * stride;
      access.store(at, access.load(at) + sum[i]);
    }
  }
  V bias{};
  for (std::int64_t q = 0; q < frames; ++q) bias += g[q];
  A* at = sums + taps * stride;
  access.store(at, access.load(at) + bias);
}

/// Prefetches rows [first, first + count) below `end`, those of the next tile: a tile moves down
/// columns, which the hardware does not predict.
template <int kWrite, class T>
void fetch_rows(const T* x, std::int64_t first, std::int64_t count, std::int64_t end,
                std::int64_t width) {
  const std::int64_t last = first + count < end ? first + count : end;
  const auto *from = reinterpret_cast<const char*>(x + first * width),
             *to = reinterpret_cast<const char*>(x + last * width);
  for (; from < to; from += 64) __builtin_prefetch(from, kWrite);
}

/// Calls body(sample, first frame, frames) for tiles of rows [first, last) within one sample.
template <class Body>
void for_tiles(std::int64_t first, std::int64_t last, std::int64_t tokens, const Body& body) {
  for (std::int64_t r = first; r < last;) {
    const std::int64_t sample = r / tokens, t = r % tokens;
    std::int64_t n = tokens - t < last - r ? tokens - t : last - r;
    if (n > kTile) n = kTile;
    body(sample, t, n);
    r += n;
  }
}

/// Channels [first, first + kWide vectors) with their taps, as vectors.
template <class T>
struct TapTile {
  Vec<T> taps[kWide][kTaps];

  TapTile(const T* weight, std::int64_t count, std::int64_t first, std::int64_t width,
          bool reversed) {
    for (std::int64_t v = 0; v < kWide; ++v)
      for (std::int64_t lane = 0; lane < kLanes<T>; ++lane) {
        const std::int64_t c = first + v * kLanes<T> + lane;
        for (std::int64_t i = 0; i < count; ++i)
          taps[v][i][lane] =
              c < width ? static_cast<Sum<T>>(weight[c * count + (reversed ? count - 1 - i : i)])
                        : Sum<T>(0);
      }
  }
};

/// Calls body(v, c, access) for the vectors of the tile of channels at `first`.
template <class T, class Body>
void for_tile_vectors(std::int64_t first, std::int64_t width, const Body& body) {
  const std::int64_t end = first + kWide * kLanes<T>;
  for_vectors<T>(first, end < width ? end : width,
                 [&](std::int64_t c, auto access) { body((c - first) / kLanes<T>, c, access); });
}

}  // namespace

std::int64_t depthwise_conv_workspace(const Shape& x, std::int64_t taps) {
  return RowBlocks(x[0] * x[1]).count * (taps + 1) * RowBlocks::stride(x[2]) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void depthwise_conv_forward(const ops::DepthwiseConv& args) {
  using V = Vec<T>;
  const std::int64_t tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t rows = args.x.shape[0] * tokens, taps = args.weight.shape[1];
  const std::int64_t left = args.left;
  const auto *x = static_cast<const T*>(args.x.data), *bias = static_cast<T*>(args.bias.data),
             *history = static_cast<const T*>(args.history.data);
  parallel_ranges(rows, width * taps, [&](std::int64_t first, std::int64_t last) {
    V buffer[kBuffer];
    for (std::int64_t tile = 0; tile < width; tile += kWide * kLanes<T>) {
      const TapTile<T> weight(static_cast<const T*>(args.weight.data), taps, tile, width, false);
      for_tiles(first, last, tokens, [&](std::int64_t b, std::int64_t t, std::int64_t n) {
        const std::int64_t valid = frames_of(args.lengths, b, tokens);
        const std::int64_t next = b * tokens + t + n;
        if (tile == 0) {
          fetch_rows<0>(x, next, kTile, last, width);
          fetch_rows<1>(static_cast<T*>(args.y.data), next, kTile, last, width);
        }
        for_tile_vectors<T>(tile, width, [&](std::int64_t v, std::int64_t c, auto access) {
          const Source<T> source{x + b * tokens * width + c,
                                 history == nullptr ? nullptr : history + b * left * width + c,
                                 left, valid, width};
          // Includes the frames that the last group reads.
          widen(source, t - left, n + kGroup + taps - 1, access, buffer);
          convolve_tile(buffer, weight.taps[v], taps, bias == nullptr ? V{} : access.load(bias + c),
                        n, valid - t, access,
                        static_cast<T*>(args.y.data) + (b * tokens + t) * width + c, width);
        });
      });
    }
  });
}

template <class T>
void depthwise_conv_backward(const ops::DepthwiseConvBackward& args) {
  using V = Vec<T>;
  using A = Sum<T>;
  const std::int64_t tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t taps = args.weight.shape[1], left = args.left, right = taps - 1 - left;
  const RowBlocks blocks(args.x.shape[0] * tokens);
  const std::int64_t stride = RowBlocks::stride(width), block_stride = (taps + 1) * stride;
  const auto *x = static_cast<const T*>(args.x.data), *d_y = static_cast<T*>(args.d_y.data);
  const bool sums = !args.d_weight.empty() || !args.d_bias.empty();
  auto* partials = static_cast<A*>(args.workspace.data);
  if (sums)
    std::memset(static_cast<void*>(partials), 0,
                static_cast<std::size_t>(blocks.count * block_stride) * sizeof(A));
  const auto run = [&](std::int64_t first_block, std::int64_t last_block) {
    V in[kBuffer], gradient[kBuffer];
    for (std::int64_t tile = 0; tile < width; tile += kWide * kLanes<T>) {
      const TapTile<T> weight(static_cast<const T*>(args.weight.data), taps, tile, width, true);
      for (std::int64_t block = first_block; block < last_block; ++block)
        for_tiles(blocks.first(block), blocks.last(block), tokens,
                  [&](std::int64_t b, std::int64_t t, std::int64_t n) {
                    const std::int64_t valid = frames_of(args.lengths, b, tokens);
                    const std::int64_t at = b * tokens * width;
                    if (const std::int64_t next = b * tokens + t + n; tile == 0) {
                      fetch_rows<0>(d_y, next, kTile, blocks.rows, width);
                      if (sums) fetch_rows<0>(x, next, kTile, blocks.rows, width);
                      fetch_rows<1>(static_cast<T*>(args.d_x.data), next, kTile, blocks.rows,
                                    width);
                    }
                    for_tile_vectors<T>(tile, width, [&](auto v, std::int64_t c, auto access) {
                      const Source<T> g{d_y + at + c, nullptr, 0, valid, width};
                      widen(g, t - right, n + kGroup + taps - 1, access, gradient);
                      convolve_tile(gradient, weight.taps[v], taps, V{}, n, valid - t, access,
                                    static_cast<T*>(args.d_x.data) + at + t * width + c, width);
                      if (!sums) return;
                      const Source<T> s{x + at + c, nullptr, 0, valid, width};
                      widen(s, t - left, n + taps - 1, access, in);
                      // Missing taps are multiplied with zeros.
                      for (std::int64_t m = n + taps - 1; m < n + taps - 1 + kTapGroup; ++m)
                        in[m] = V{};
                      correlate_tile(in, gradient + right, n, taps, access,
                                     partials + block * block_stride + c, stride);
                    });
                  });
    }
  };
  parallel_ranges(blocks.count, blocks.rows_per_block * width * taps, run);
  if (!sums) return;
  // Columns of the sums are channels; columns of the weight are taps.
  parallel_ranges(width, (taps + 1) * blocks.count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i <= taps; ++i) {
      const TensorView& to = i < taps ? args.d_weight : args.d_bias;
      if (to.empty()) continue;
      auto* total = static_cast<A*>(to.data) + (i < taps ? i : 0);
      for_vectors<A>(first, last, [&](std::int64_t c, auto access) {
        Vec<A> sum{};
        for (std::int64_t b = 0; b < blocks.count; ++b)
          sum += access.load(partials + b * block_stride + i * stride + c);
        for (std::int64_t lane = 0; lane < kLanes<A> && c + lane < last; ++lane)
          total[(c + lane) * (i < taps ? taps : 1)] += sum[lane];
      });
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                               \
  template void depthwise_conv_forward<T>(const ops::DepthwiseConv& args); \
  template void depthwise_conv_backward<T>(const ops::DepthwiseConvBackward& args);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void depthwise_conv_forward(const ops::DepthwiseConv& args) {
  const std::int64_t batch = args.x.shape[0], tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t taps = args.weight.shape[1];
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t frames = frames_of(args.lengths, b, tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        double sum = args.bias.empty() ? 0 : args.bias.as<double>()[c];
        for (std::int64_t i = 0; i < taps; ++i) {
          const std::int64_t from = t + i - args.left;
          if (from >= 0 && from < frames)
            sum += w[c * taps + i] * x[(b * tokens + from) * width + c];
          else if (from < 0 && !args.history.empty())
            sum += w[c * taps + i] *
                   args.history.as<double>()[(b * args.left + args.left + from) * width + c];
        }
        args.y.as<double>()[(b * tokens + t) * width + c] = t < frames ? sum : 0;
      }
  }
}

void depthwise_conv_backward(const ops::DepthwiseConvBackward& args) {
  const std::int64_t batch = args.x.shape[0], tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t taps = args.weight.shape[1];
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  for (std::int64_t i = 0; i < args.d_x.count(); ++i) args.d_x.as<double>()[i] = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t frames = frames_of(args.lengths, b, tokens);
    for (std::int64_t t = 0; t < frames; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        const double g = args.d_y.as<double>()[(b * tokens + t) * width + c];
        if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += g;
        for (std::int64_t i = 0; i < taps; ++i) {
          const std::int64_t from = t + i - args.left, at = (b * tokens + from) * width + c;
          if (from < 0 || from >= frames) continue;
          args.d_x.as<double>()[at] += g * w[c * taps + i];
          if (!args.d_weight.empty()) args.d_weight.as<double>()[c * taps + i] += g * x[at];
        }
      }
  }
}

}  // namespace choir::ref
