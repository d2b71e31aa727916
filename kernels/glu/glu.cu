#include "kernels/glu/glu.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/glu/glu.hpp"

namespace choir::cuda {
namespace {

/// Calls f(first row, FramePacks) for parts of all rows that 32 bits can index: whole samples, or a
/// part of one.
template <class T, bool kPacked, class F>
void for_parts(std::int64_t rows, std::int64_t width, const std::int32_t* lengths,
               std::int64_t tokens, const F& f) {
  const std::int64_t per_row = width / Access<T, kPacked>::kWide;
  for_row_parts(rows, per_row, tokens, [&](std::int64_t first, std::int64_t count) {
    f(first, FramePacks{static_cast<std::uint32_t>(count * per_row), Divisor(per_row),
                        Divisor(tokens), lengths == nullptr ? nullptr : lengths + first / tokens,
                        static_cast<std::uint32_t>(first % tokens)});
  });
}

}  // namespace

void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths, std::int64_t tokens) {
  if (y.count() == 0) return;
  const std::int64_t width = y.shape.back();
  with_element(y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>(), y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(y.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "glu_forward", glu_forward_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * 2 * width,
               y.as<T>() + first * width);
      });
    });
  });
}

void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens) {
  if (d_y.count() == 0) return;
  const std::int64_t width = d_y.shape.back();
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>(), d_y.as<T>(), d_x.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(d_y.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "glu_backward", glu_backward_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * 2 * width,
               d_y.as<T>() + first * width, d_x.as<T>() + first * 2 * width);
      });
    });
  });
}

void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens) {
  if (x.count() == 0) return;
  const std::int64_t width = x.shape.back();
  with_element(x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(x.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "mask_frames", mask_frames_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * width);
      });
    });
  });
}

}  // namespace choir::cuda
