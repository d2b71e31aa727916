// Rows of audio among the rows of a prompt. A thread has one pack of 16 bytes, or one element, of a
// row; threads of rows without audio do nothing. Floor per element of audio: forward 3 transfers,
// backward 2; reading the index once per pack is served by L1.

#include "kernels/copy/splice.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// The rows of this rank in all audio.
struct AudioRows {
  std::int64_t first, rows;
  /// Returns -1 if the row is not on this rank.
  __device__ std::int64_t at(std::int32_t index) const {
    const std::int64_t a = -1 - std::int64_t{index} - first;
    return index < 0 && a >= 0 && a < rows ? a : -1;
  }
};

/// Fewer than 2^31 packs in total.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kElementwiseThreads)
    splice_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                  const std::int32_t* index, const T* audio, T* out) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t from = here.at(index[row]);
    if (from < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    float x[kWide], y[kWide];
    Wide::load(audio + from * width + column, x);
    Wide::load(out + i * kWide, y);
#pragma unroll
    for (int k = 0; k < kWide; ++k) y[k] += x[k];
    Wide::store(out + i * kWide, y);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    splice_gradient_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                           const std::int32_t* index, const T* d_out, T* d_audio) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t to = here.at(index[row]);
    if (to < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    Wide::write(d_audio + to * width + column, Wide::read(d_out + i * kWide));
  }
}

namespace {

/// Calls f(packs fit, items per row, first row, rows), part by part.
template <class T, class F>
void for_parts(const TensorView& index, const TensorView& rows, const TensorView& audio,
               const F& f) {
  const std::int64_t width = rows.shape.back(), count = index.count();
  if (count * width == 0 || audio.count() == 0) return;
  with_bool(can_pack<T>(width, rows.as<T>(), audio.as<T>()), [&](auto packed) {
    const std::int64_t per_row = width / Access<T, decltype(packed)::value>::kWide;
    for_row_parts(count, per_row, 1,
                  [&](std::int64_t first, std::int64_t n) { f(packed, per_row, first, n); });
  });
}

}  // namespace

void splice_forward(const Stream& stream, const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back();
  with_element(args.out.dtype, [&](auto t) {
    using T = decltype(t);
    for_parts<T>(args.index, args.out, args.audio,
                 [&](auto packed, std::int64_t per_row, std::int64_t first, std::int64_t rows) {
                   launch(stream, "splice", splice_kernel<T, decltype(packed)::value>,
                          {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
                          Divisor(per_row), width,
                          AudioRows{args.first_audio, args.audio.shape.rows()},
                          args.index.as<std::int32_t>() + first, args.audio.as<T>(),
                          args.out.as<T>() + first * width);
                 });
  });
}

void splice_backward(const Stream& stream, const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  with_element(args.d_out.dtype, [&](auto t) {
    using T = decltype(t);
    for_parts<T>(
        args.index, args.d_out, args.d_audio,
        [&](auto packed, std::int64_t per_row, std::int64_t first, std::int64_t rows) {
          launch(stream, "splice_gradient", splice_gradient_kernel<T, decltype(packed)::value>,
                 {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
                 Divisor(per_row), width, AudioRows{args.first_audio, args.d_audio.shape.rows()},
                 args.index.as<std::int32_t>() + first, args.d_out.as<T>() + first * width,
                 args.d_audio.as<T>());
        });
  });
}

}  // namespace choir::cuda
