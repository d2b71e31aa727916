#include "kernels/activation/activation.cuh"

#include "kernels/activation/activation.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

/// Calls f(F{}), where F is the function of one input of this kind.
template <class T, class F>
void with_function(ops::Activation kind, const F& f) {
  switch (kind) {
    case ops::Activation::gelu:
      return f(Gelu<MathFor<T>>{});
    case ops::Activation::gelu_tanh:
      return f(GeluTanh<MathFor<T>>{});
    case ops::Activation::relu:
      return f(Relu<MathFor<T>>{});
    case ops::Activation::silu:
      return f(Silu<MathFor<T>>{});
    case ops::Activation::swiglu:
      break;
  }
}

template <class T, bool kPacked>
void swiglu_forward(const Stream& stream, const TensorView& x, const TensorView& y) {
  const std::int64_t width = y.shape.back(), per_row = width / Access<T, kPacked>::kWide;
  for_row_parts(y.shape.rows(), per_row, 1, [&](std::int64_t first, std::int64_t rows) {
    launch_small_early(stream, "swiglu_forward", swiglu_forward_kernel<T, kPacked>,
                       {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
                       Divisor(per_row), x.as<T>() + first * 2 * width, y.as<T>() + first * width);
  });
}

template <class T, bool kPacked>
void swiglu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                     const TensorView& d_x) {
  const std::int64_t width = d_y.shape.back(), per_row = width / Access<T, kPacked>::kWide;
  for_row_parts(d_y.shape.rows(), per_row, 1, [&](std::int64_t first, std::int64_t rows) {
    launch(stream, "swiglu_backward", swiglu_backward_kernel<T, kPacked>,
           {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
           Divisor(per_row), x.as<T>() + first * 2 * width, d_y.as<T>() + first * width,
           d_x.as<T>() + first * 2 * width);
  });
}

}  // namespace

void activation_forward(const Stream& stream, ops::Activation kind, const TensorView& x,
                        const TensorView& y) {
  const std::int64_t n = y.count();
  if (n == 0) return;
  with_element(y.dtype, [&](auto t) {
    using T = decltype(t);
    const bool gated = kind == ops::Activation::swiglu;
    // Flat maps handle the ragged tail of the whole tensor themselves.
    with_bool(can_pack<T>(gated ? y.shape.back() : 0, x.as<T>(), y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (gated) return swiglu_forward<T, kPacked>(stream, x, y);
      with_function<T>(kind, [&](auto f) {
        launch_small_early(
            stream, "activation_forward", activation_forward_kernel<T, kPacked, decltype(f)>,
            {map_blocks<T, kPacked, 1>(n), kElementwiseThreads}, n, x.as<T>(), y.as<T>());
      });
    });
  });
}

void activation_backward(const Stream& stream, ops::Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x) {
  const std::int64_t n = d_y.count();
  if (n == 0) return;
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    const bool gated = kind == ops::Activation::swiglu;
    const bool can = can_pack<T>(gated ? d_y.shape.back() : 0, x.as<T>(), d_y.as<T>(), d_x.as<T>());
    with_bool(can, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (gated) return swiglu_backward<T, kPacked>(stream, x, d_y, d_x);
      with_function<T>(kind, [&](auto f) {
        launch(stream, "activation_backward", activation_backward_kernel<T, kPacked, decltype(f)>,
               {map_blocks<T, kPacked, 2>(n), kElementwiseThreads}, n, x.as<T>(), d_y.as<T>(),
               d_x.as<T>());
      });
    });
  });
}

}  // namespace choir::cuda
