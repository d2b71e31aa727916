#include "kernels/strided_conv/strided_conv_cpu.hpp"

namespace choir::cpu {
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

}  // namespace choir::cpu
