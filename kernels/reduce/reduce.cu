#include "kernels/cuda/reduce.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/reduce/reduce.hpp"

namespace choir::cuda {
namespace {

template <class T, class... P>
bool aligned(const P*... pointers) {
  return can_pack<T>(0, pointers...);
}

/// The elements of a tensor, which must be f32 on this device.
float* floats(const TensorView& x) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  return x.as<float>();
}

/// Calls launch_one(group, blocks of the group) for groups of as many tensors as a kernel takes.
template <class A, class Blocks, class Launch>
void for_groups_of(std::span<const ops::Summed> tensors, const Blocks& blocks_of,
                   const Launch& launch_one) {
  SummedTensors<A> some;
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (blocks > 0) launch_one(some, static_cast<unsigned>(blocks));
    some.count = 0, blocks = 0;
  };
  for (const ops::Summed& one : tensors) {
    if (some.count == SummedTensors<A>::kMost) flush();
    if constexpr (std::is_same_v<A, float>) floats(one.x);
    some.x[some.count] = one.x.as<A>();
    some.sums[some.count] = one.sums.as<double>();
    some.n[some.count] = one.x.count();
    some.first_block[some.count++] = static_cast<unsigned>(blocks);
    blocks += blocks_of(one);
  }
  flush();
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

void sums_of_squares(const Stream& stream, std::span<const ops::Summed> tensors) {
  for_groups_of<float>(
      tensors, [](const ops::Summed& one) { return one.sums.count(); },
      [&](const SummedTensors<float>& some, unsigned blocks) {
        launch(stream, "sums_of_squares", sums_of_squares_kernel<int{ops::kNormChunk}>,
               {blocks, kSquareThreads}, some);
      });
}

void tree_sums(const Stream& stream, std::span<const ops::Summed> tensors) {
  const auto sum = [&](auto type) {
    using A = decltype(type);
    for_groups_of<A>(
        tensors, [](const ops::Summed&) { return 1; },
        [&](const SummedTensors<A>& some, unsigned blocks) {
          launch(stream, "tree_sums", tree_sums_kernel<A>, {blocks, kTreeThreads}, some);
        });
  };
  tensors.front().x.dtype == DType::f64 ? sum(double{}) : sum(float{});
}

void zero(const Stream& stream, const TensorView& x) {
  stream.zero(x.data, x.bytes());
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  stream.copy(to.data, from.data, from.bytes());
}

}  // namespace choir::cuda
