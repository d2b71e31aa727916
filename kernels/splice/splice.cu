#include "kernels/splice/splice.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/splice/splice.hpp"

namespace choir::cuda {
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
