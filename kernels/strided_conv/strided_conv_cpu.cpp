// The strided convolution on the CPU: weights as lines of channels, input frames with zeros for
// invalid ones, windows that slide along the frequencies; then forward and backward.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/strided_conv/strided_conv.hpp"

namespace choir::cpu {

/// Transposes weight [C, 9] to 9 lines of `stride` channels.
template <class T>
void transpose_taps(const T* weight, std::int64_t channels, std::int64_t stride, Sum<T>* lines) {
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t i = 0; i < 9; ++i)
      lines[i * stride + c] = static_cast<Sum<T>>(weight[9 * c + i]);
}

/// One frame [F, C] as its columns; an invalid frame is a column of zeros that is read repeatedly.
template <class T>
struct FrameRow {
  const T* at = nullptr;
  std::int64_t step = 0;
};

template <class T>
inline FrameRow<T> frame_row(const T* sample, std::int64_t frame, std::int64_t frames,
                             std::int64_t size, std::int64_t step) {
  static constexpr T kZeros[kLanes<T>] = {};
  if (frame < 0 || frame >= frames) return {kZeros, 0};
  return {sample + frame * size, step};
}

/// Column `f` of a frame; zeros outside.
template <class T, class Access>
inline Vec<T> column(const FrameRow<T>& row, std::int64_t f, std::int64_t count, std::int64_t c,
                     const Access& access) {
  if (f < 0 || f >= count) return Vec<T>{};
  return access.load(row.step == 0 ? row.at : row.at + f * row.step + c);
}

/// Calls body(f, x) for the outputs f of a row, where x[3 i + j] is the input under tap (i, j), for
/// one vector of channels c. The last column of a window is the first of the next.
template <class T, class Access, class Body>
inline void slide_columns(const FrameRow<T> (&rows)[3], std::int64_t in, std::int64_t out,
                          std::int64_t pad, std::int64_t c, const Access& access,
                          const Body& body) {
  using V = Vec<T>;
  V first[3] = {};  // column -pad
  for (std::int64_t f = 0; f < out; ++f) {
    V x[9];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      x[3 * i] = first[i];
      x[3 * i + 1] = column(rows[i], 2 * f + 1 - pad, in, c, access);
      x[3 * i + 2] = first[i] = column(rows[i], 2 * f + 2 - pad, in, c, access);
    }
    body(f, x);
  }
}

/// The frames under outputs [first, first + kWindow) of one input channel, converted: 3 lines.
template <class T>
struct NarrowWindow {
  static constexpr std::int64_t kOutputs = 64, kColumns = 2 * kOutputs + 1;
  Sum<T> x[3][kColumns];

  NarrowWindow(const T* sample, std::int64_t frames, std::int64_t in, std::int64_t top,
               std::int64_t first, std::int64_t count) {
    const std::int64_t columns = 2 * count + 1, from = first < 0 ? -first : 0,
                       to = first + columns < in ? columns : in - first;
    for (int i = 0; i < 3; ++i) {
      const std::int64_t frame = top + i;
      Sum<T>* const line = x[i];
      if (frame < 0 || frame >= frames) {
        std::fill(line, line + columns, Sum<T>(0));
        continue;
      }
      std::fill(line, line + from, Sum<T>(0));
      for_vectors<T>(from, to, [&](std::int64_t k, auto access) {
        access.store(line + k, access.load(sample + frame * in + first + k));
      });
      std::fill(line + to, line + columns, Sum<T>(0));
    }
  }
};

namespace {

/// Number of channels whose weights are kept on the stack as lines.
constexpr std::int64_t kChannelTile = 256;

template <class T>
struct Forward {
  const T* x;
  const T* bias;
  T* y;
  std::int64_t frames, frequencies, channels;  ///< extents of x; channels of y
  std::int64_t out_frames, out_frequencies;
  std::int64_t pad;
};

template <class T, bool kRelu, class Access>
inline void finish(Vec<T> sum, T* y, const Access& access) {
  if constexpr (kRelu) sum = sum < 0 ? Vec<T>{} : sum;
  access.store(y, sum);
}

/// One output frame of a depthwise layer: channels [first, last), whose weights are `lines`.
template <class T, bool kRelu>
void depthwise_row(const Forward<T>& a, const FrameRow<T> (&rows)[3], const Sum<T>* lines,
                   std::int64_t first, std::int64_t last, T* y) {
  for_vectors<T>(first, last, [&](std::int64_t c, auto access) {
    Vec<T> w[9];
#pragma GCC unroll 9
    for (int i = 0; i < 9; ++i) w[i] = access.load(lines + i * kChannelTile + c - first);
    const Vec<T> bias = access.load(a.bias + c);
    slide_columns<T>(rows, a.frequencies, a.out_frequencies, a.pad, c, access,
                     [&](std::int64_t f, const Vec<T>(&x)[9]) {
                       Vec<T> sum = bias;
#pragma GCC unroll 9
                       for (int i = 0; i < 9; ++i) sum += w[i] * x[i];
                       finish<T, kRelu>(sum, y + f * a.channels + c, access);
                     });
  });
}

/// The same for the layer with one input channel.
template <class T, bool kRelu>
void narrow_row(const Forward<T>& a, const T* sample, std::int64_t frames, std::int64_t t,
                const Sum<T>* lines, std::int64_t first, std::int64_t last, T* y) {
  using Window = NarrowWindow<T>;
  for (std::int64_t f0 = 0; f0 < a.out_frequencies; f0 += Window::kOutputs) {
    const std::int64_t rest = a.out_frequencies - f0;
    const std::int64_t count = rest < Window::kOutputs ? rest : Window::kOutputs;
    const Window window(sample, frames, a.frequencies, 2 * t - a.pad, 2 * f0 - a.pad, count);
    for_vectors<T>(first, last, [&](std::int64_t c, auto access) {
      Vec<T> w[9];
#pragma GCC unroll 9
      for (int i = 0; i < 9; ++i) w[i] = access.load(lines + i * kChannelTile + c - first);
      const Vec<T> bias = access.load(a.bias + c);
      for (std::int64_t f = 0; f < count; ++f) {
        Vec<T> sum = bias;
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i)
#pragma GCC unroll 3
          for (int j = 0; j < 3; ++j) sum += w[3 * i + j] * window.x[i][2 * f + j];
        finish<T, kRelu>(sum, y + (f0 + f) * a.channels + c, access);
      }
    });
  }
}

template <class T, bool kRelu>
void run(const ops::StridedConv& args) {
  const Shape &in = args.x.shape, &out = args.y.shape;
  const Forward<T> a{static_cast<const T*>(args.x.data),
                     static_cast<const T*>(args.bias.data),
                     static_cast<T*>(args.y.data),
                     in[1],
                     in[2],
                     out[3],
                     out[1],
                     out[2],
                     args.causal ? 2 : 1};
  const bool narrow = in[3] == 1;
  const std::int64_t size = in[2] * in[3], out_size = out[2] * out[3];
  parallel_ranges(out[0] * out[1], 4 * out_size, [&](std::int64_t begin, std::int64_t end) {
    Sum<T> lines[9 * kChannelTile];
    for (std::int64_t tile = 0; tile < a.channels; tile += kChannelTile) {
      const std::int64_t last = tile + kChannelTile < a.channels ? tile + kChannelTile : a.channels;
      transpose_taps(static_cast<const T*>(args.weight.data) + 9 * tile, last - tile, kChannelTile,
                     lines);
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t b = r / a.out_frames, t = r % a.out_frames;
        T* y = a.y + r * out_size;
        if (t >= frames_of(args.out_lengths, b, a.out_frames)) {
          std::memset(static_cast<void*>(y), 0, static_cast<std::size_t>(out_size) * sizeof(T));
          continue;
        }
        const T* sample = a.x + b * a.frames * size;
        const std::int64_t frames = frames_of(args.in_lengths, b, a.frames);
        if (narrow) {
          narrow_row<T, kRelu>(a, sample, frames, t, lines, tile, last, y);
          continue;
        }
        FrameRow<T> rows[3];
        for (int i = 0; i < 3; ++i)
          rows[i] = frame_row(sample, 2 * t + i - a.pad, frames, size, a.channels);
        depthwise_row<T, kRelu>(a, rows, lines, tile, last, y);
      }
    }
  });
}

}  // namespace

template <class T>
void strided_conv_forward(const ops::StridedConv& args) {
  args.relu ? run<T, true>(args) : run<T, false>(args);
}

template void strided_conv_forward<double>(const ops::StridedConv&);
template void strided_conv_forward<float>(const ops::StridedConv&);
template void strided_conv_forward<bf16>(const ops::StridedConv&);
template void strided_conv_forward<f16>(const ops::StridedConv&);

namespace {

template <class T>
struct Backward {
  const T *x, *y, *d_y;
  T* d_x;
  const Sum<T>* lines;                         ///< weights, 9 lines of `stride`
  std::int64_t frames, frequencies, in_width;  ///< extents of x
  std::int64_t out_frames, out_frequencies, channels;
  std::int64_t pad, stride;
};

/// The gradient before the relu: d_y where y > 0.
template <class T, bool kRelu>
struct GradientRow {
  FrameRow<T> d_y, y;
  std::int64_t count = 0;

  template <class Access>
  Vec<T> at(std::int64_t f, std::int64_t c, const Access& access) const {
    const Vec<T> g = column(d_y, f, count, c, access);
    if constexpr (!kRelu) return g;
    return column(y, f, count, c, access) > 0 ? g : Vec<T>{};
  }
};

template <class T, bool kRelu>
GradientRow<T, kRelu> gradient_row(const Backward<T>& a, std::int64_t b, std::int64_t t,
                                   std::int64_t frames) {
  const std::int64_t size = a.out_frequencies * a.channels, at = b * a.out_frames * size;
  return {frame_row(a.d_y + at, t, frames, size, a.channels),
          kRelu ? frame_row(a.y + at, t, frames, size, a.channels) : FrameRow<T>{},
          a.out_frequencies};
}

/// Rows of outputs that read one input frame, with the row of the tap that they use.
template <class T, bool kRelu>
struct Listeners {
  GradientRow<T, kRelu> row[2];
  int tap[2] = {}, count = 0;

  Listeners(const Backward<T>& a, std::int64_t b, std::int64_t frame, std::int64_t out_valid) {
    for (int i = 0; i < 3; ++i) {
      const std::int64_t twice = frame + a.pad - i;
      if (twice % 2 != 0 || twice < 0 || twice / 2 >= out_valid) continue;
      tap[count] = i;
      row[count++] = gradient_row<T, kRelu>(a, b, twice / 2, out_valid);
    }
  }
};

/// Calls body(k, single, twice) for pairs of columns 2 k and 2 k + 1 of an input frame, with the
/// gradient of the column that the middle tap reads and that of the other.
template <class T, bool kRelu, class Access, class Body>
inline void gather_columns(const Backward<T>& a, const Listeners<T, kRelu>& from, std::int64_t c,
                           const Access& access, const Body& body) {
  using V = Vec<T>;
  V w[2][3] = {}, here[2] = {};
  for (int e = 0; e < from.count; ++e) {
    for (int j = 0; j < 3; ++j)
      w[e][j] = access.load(a.lines + (3 * from.tap[e] + j) * a.stride + c);
    here[e] = from.row[e].at(0, c, access);
  }
  for (std::int64_t k = 0; 2 * k < a.frequencies; ++k) {
    V single{}, twice{};
    for (int e = 0; e < from.count; ++e) {
      const V next = from.row[e].at(k + 1, c, access);
      single += w[e][1] * (a.pad == 1 ? here[e] : next);
      twice += w[e][0] * next + w[e][2] * here[e];
      here[e] = next;
    }
    body(k, single, twice);
  }
}

template <class T, bool kRelu>
void input_gradient(const Backward<T>& a, std::int64_t b, std::int64_t frame, std::int64_t valid,
                    std::int64_t out_valid) {
  const std::int64_t size = a.frequencies * a.in_width;
  T* d_x = a.d_x + (b * a.frames + frame) * size;
  if (frame >= valid) {
    std::memset(static_cast<void*>(d_x), 0, static_cast<std::size_t>(size) * sizeof(T));
    return;
  }
  const Listeners<T, kRelu> from(a, b, frame, out_valid);
  // The middle tap of a pair reads the first column with padding 1 and the second with padding 2.
  const std::int64_t middle = a.pad == 1 ? 0 : 1, other = 1 - middle;
  if (a.in_width == 1) {
    // All channels are summed into one number; as many frequencies at a time as fit.
    constexpr std::int64_t kPairs = 64;
    for (std::int64_t f = 0; f < a.frequencies; ++f) d_x[f] = T(0.0f);
    for (std::int64_t k0 = 0; 2 * k0 < a.frequencies; k0 += kPairs) {
      Sum<T> sums[2 * kPairs] = {};
      for_vectors<T>(0, a.channels, [&](std::int64_t c, auto access) {
        gather_columns<T, kRelu>(a, from, c, access, [&](std::int64_t k, auto single, auto twice) {
          if (k < k0 || k >= k0 + kPairs) return;
          sums[2 * (k - k0) + middle] += sum_of_lanes(single);
          sums[2 * (k - k0) + other] += sum_of_lanes(twice);
        });
      });
      for (std::int64_t f = 2 * k0; f < 2 * (k0 + kPairs) && f < a.frequencies; ++f)
        d_x[f] = static_cast<T>(sums[f - 2 * k0]);
    }
    return;
  }
  for_vectors<T>(0, a.channels, [&](std::int64_t c, auto access) {
    gather_columns<T, kRelu>(a, from, c, access, [&](std::int64_t k, auto single, auto twice) {
      const auto store = [&](std::int64_t f, auto value) {
        if (f < a.frequencies) access.store(d_x + f * a.channels + c, value);
      };
      store(2 * k + middle, single), store(2 * k + other, twice);
    });
  });
}

/// Adds one output frame to sums [10, stride]: 9 taps, then the bias.
template <class T, bool kRelu>
void weight_gradient(const Backward<T>& a, std::int64_t b, std::int64_t t, std::int64_t valid,
                     std::int64_t out_valid, Sum<T>* sums) {
  using V = Vec<T>;
  const auto gradient = gradient_row<T, kRelu>(a, b, t, out_valid);
  const std::int64_t size = a.frequencies * a.in_width;
  const T* sample = a.x + b * a.frames * size;
  const auto with_sums = [&](std::int64_t c, auto access, const auto& body) {
    V sum[10];
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) sum[i] = access.load(sums + i * a.stride + c);
    body(sum);
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) access.store(sums + i * a.stride + c, sum[i]);
  };
  if (a.in_width == 1) {
    using Window = NarrowWindow<T>;
    for (std::int64_t f0 = 0; f0 < a.out_frequencies; f0 += Window::kOutputs) {
      const std::int64_t rest = a.out_frequencies - f0;
      const std::int64_t count = rest < Window::kOutputs ? rest : Window::kOutputs;
      const Window window(sample, valid, a.frequencies, 2 * t - a.pad, 2 * f0 - a.pad, count);
      for_vectors<T>(0, a.channels, [&](std::int64_t c, auto access) {
        with_sums(c, access, [&](V(&sum)[10]) {
          for (std::int64_t f = 0; f < count; ++f) {
            const V g = gradient.at(f0 + f, c, access);
#pragma GCC unroll 3
            for (int i = 0; i < 3; ++i)
#pragma GCC unroll 3
              for (int j = 0; j < 3; ++j) sum[3 * i + j] += g * window.x[i][2 * f + j];
            sum[9] += g;
          }
        });
      });
    }
    return;
  }
  FrameRow<T> rows[3];
  for (int i = 0; i < 3; ++i)
    rows[i] = frame_row(sample, 2 * t + i - a.pad, valid, size, a.channels);
  for_vectors<T>(0, a.channels, [&](std::int64_t c, auto access) {
    with_sums(c, access, [&](V(&sum)[10]) {
      slide_columns<T>(rows, a.frequencies, a.out_frequencies, a.pad, c, access,
                       [&](std::int64_t f, const V(&x)[9]) {
                         const V g = gradient.at(f, c, access);
#pragma GCC unroll 9
                         for (int i = 0; i < 9; ++i) sum[i] += g * x[i];
                         sum[9] += g;
                       });
    });
  });
}

/// Adds the sums over blocks, which are lines of channels, to d_weight [C, 9] and d_bias [C].
template <class A>
void add_sums(const A* partials, std::int64_t blocks, std::int64_t stride, std::int64_t channels,
              const ops::StridedConvBackward& args) {
  parallel_ranges(channels, 10 * blocks, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i < 10; ++i) {
      const TensorView& to = i < 9 ? args.d_weight : args.d_bias;
      if (to.empty()) continue;
      auto* total = static_cast<A*>(to.data) + (i < 9 ? i : 0);
      for_vectors<A>(first, last, [&](std::int64_t c, auto access) {
        Vec<A> sum{};
        for (std::int64_t b = 0; b < blocks; ++b)
          sum += access.load(partials + (10 * b + i) * stride + c);
        for (std::int64_t lane = 0; lane < kLanes<A> && c + lane < last; ++lane)
          total[(c + lane) * (i < 9 ? 9 : 1)] += sum[lane];
      });
    }
  });
}

template <class T, bool kRelu>
void run(const ops::StridedConvBackward& args) {
  using A = Sum<T>;
  const Shape &in = args.x.shape, &out = args.d_y.shape;
  const RowBlocks blocks(out[0] * out[1]);
  const std::int64_t stride = RowBlocks::stride(out[3]);
  auto* partials = static_cast<A*>(args.workspace.data);
  A* lines = partials + blocks.count * 10 * stride;
  transpose_taps(static_cast<const T*>(args.weight.data), out[3], stride, lines);
  const Backward<T> a{static_cast<const T*>(args.x.data),
                      static_cast<const T*>(args.y.data),
                      static_cast<const T*>(args.d_y.data),
                      static_cast<T*>(args.d_x.data),
                      lines,
                      in[1],
                      in[2],
                      in[3],
                      out[1],
                      out[2],
                      out[3],
                      args.causal ? 2 : 1,
                      stride};
  const bool sums = !args.d_weight.empty() || !args.d_bias.empty();
  parallel_ranges(blocks.count, blocks.rows_per_block * out[2] * out[3] * 4,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t block = first; block < last; ++block) {
                      A* at = partials + block * 10 * stride;
                      std::memset(at, 0, static_cast<std::size_t>(10 * stride) * sizeof(A));
                      for (std::int64_t r = blocks.first(block); r < blocks.last(block); ++r) {
                        const std::int64_t b = r / a.out_frames, t = r % a.out_frames;
                        const std::int64_t valid = frames_of(args.in_lengths, b, a.frames);
                        const std::int64_t out_valid = frames_of(args.out_lengths, b, a.out_frames);
                        if (a.d_x != nullptr)
                          for (std::int64_t frame = 2 * t; frame < 2 * t + 2 && frame < a.frames;
                               ++frame)
                            input_gradient<T, kRelu>(a, b, frame, valid, out_valid);
                        if (sums && t < out_valid)
                          weight_gradient<T, kRelu>(a, b, t, valid, out_valid, at);
                      }
                    }
                  });
  if (sums) add_sums(partials, blocks.count, stride, out[3], args);
}

}  // namespace

std::int64_t strided_conv_workspace(const Shape& y) {
  return (RowBlocks(y[0] * y[1]).count * 10 + 9) * RowBlocks::stride(y[3]) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void strided_conv_backward(const ops::StridedConvBackward& args) {
  args.relu ? run<T, true>(args) : run<T, false>(args);
}

template void strided_conv_backward<double>(const ops::StridedConvBackward&);
template void strided_conv_backward<float>(const ops::StridedConvBackward&);
template void strided_conv_backward<bf16>(const ops::StridedConvBackward&);
template void strided_conv_backward<f16>(const ops::StridedConvBackward&);

}  // namespace choir::cpu
