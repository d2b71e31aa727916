#include "kernels/reduce.cuh"

#include "kernels/reduce.hpp"
#include "kernels/types.cuh"

namespace choir::cuda {

void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  const std::int64_t n = a.count();
  if (n == 0) return;
  with_element(a.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "add", add_kernel<T>,
           {elementwise_blocks(blocks_for(n, kPack<T>)), kElementwiseThreads}, n, a.as<T>(),
           b.as<T>(), out.as<T>());
  });
}

void zero(const Stream& stream, const TensorView& x) {
  stream.zero(x.data, x.bytes());
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  stream.copy(to.data, from.data, from.bytes());
}

}  // namespace choir::cuda
