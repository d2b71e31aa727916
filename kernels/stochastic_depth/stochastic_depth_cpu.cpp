#include "kernels/stochastic_depth/stochastic_depth.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {

template <class T>
void stochastic_depth_forward(const ops::StochasticDepth& args, const TensorView& x,
                              const TensorView& f, const TensorView& out) {
  const std::int64_t width = x.shape.back();
  parallel_ranges(x.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const auto a = static_cast<Sum<T>>(depth_factor(args, r));
      const T *from = static_cast<const T*>(x.data) + r * width,
              *layer = static_cast<const T*>(f.data) + r * width;
      T* to = static_cast<T*>(out.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> v = access.load(from + c);
        access.store(to + c, a == 0 ? v : v + a * (access.load(layer + c) - v));
      });
    }
  });
}

template <class T>
void stochastic_depth_backward(const ops::StochasticDepth& args, const TensorView& d_out,
                               const TensorView& d_f, const TensorView& d_x) {
  const std::int64_t width = d_out.shape.back();
  parallel_ranges(d_out.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const auto a = static_cast<Sum<T>>(depth_factor(args, r)), rest = 1 - a;
      const T* from = static_cast<const T*>(d_out.data) + r * width;
      T *layer = static_cast<T*>(d_f.data) + r * width,
        *input = static_cast<T*>(d_x.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> d = access.load(from + c);
        access.store(layer + c, a * d);
        access.store(input + c, rest * d);
      });
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                                                 \
  template void stochastic_depth_forward<T>(const ops::StochasticDepth&, const TensorView&,  \
                                            const TensorView&, const TensorView&);           \
  template void stochastic_depth_backward<T>(const ops::StochasticDepth&, const TensorView&, \
                                             const TensorView&, const TensorView&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
