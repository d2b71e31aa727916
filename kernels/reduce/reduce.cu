#include "kernels/cuda/reduce.cuh"

#include "kernels/reduce/reduce.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

template <class T, class... P>
bool aligned(const P*... pointers) {
  return can_pack<T>(0, pointers...);
}

/// The elements of a tensor that must be f32 on this device.
float* floats(const TensorView& x) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  return x.as<float>();
}

}  // namespace

void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  const std::int64_t n = a.count();
  if (n == 0) return;
  with_element(a.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "add", add_kernel<T>,
           {elementwise_blocks(blocks_for(n, kPack<T>)), kElementwiseThreads}, n,
           aligned<T>(a.data, b.data, out.data), a.as<T>(), b.as<T>(), out.as<T>());
  });
}

void scale(const Stream& stream, const TensorView& x, double factor) {
  const std::int64_t n = x.count();
  float* const values = floats(x);
  if (n == 0) return;
  launch(stream, "scale", scale_kernel,
         {elementwise_blocks(blocks_for(n, kPack<float>)), kElementwiseThreads}, n,
         aligned<float>(values), values, static_cast<float>(factor));
}

void cast(const Stream& stream, const TensorView& from, const TensorView& to) {
  const std::int64_t n = to.count();
  if (n == 0) return;
  with_element(from.dtype, [&](auto f) {
    with_element(to.dtype, [&](auto t) {
      using From = decltype(f);
      using To = decltype(t);
      launch(stream, "cast", cast_kernel<From, To>,
             {elementwise_blocks(blocks_for(n, 8)), kElementwiseThreads}, n,
             aligned<From>(from.data, to.data), from.as<From>(), to.as<To>());
    });
  });
}

void sum_of_squares(const Stream& stream, const TensorView& x, const TensorView& partials) {
  const float* const values = floats(x);
  if (x.count() == 0) return;
  launch(stream, "sum_of_squares", sum_of_squares_kernel<int{ops::kNormChunk}>,
         {static_cast<unsigned>(partials.count()), kSquareThreads}, x.count(),
         aligned<float>(values), values, partials.as<double>());
}

void tree_sum(const Stream& stream, const TensorView& x, const TensorView& total) {
  if (x.dtype == DType::f64)
    launch(stream, "tree_sum", tree_sum_kernel<double>, {1, kTreeThreads}, x.count(),
           x.as<double>(), total.as<double>());
  else
    launch(stream, "tree_sum", tree_sum_kernel<float>, {1, kTreeThreads}, x.count(), x.as<float>(),
           total.as<double>());
}

void zero(const Stream& stream, const TensorView& x) {
  stream.zero(x.data, x.bytes());
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  stream.copy(to.data, from.data, from.bytes());
}

}  // namespace choir::cuda
