#include "kernels/stochastic_depth/stochastic_depth.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check(const StochasticDepth& a, const TensorView& x, const TensorView& y,
           const TensorView& z) {
  for (const TensorView* tensor : {&x, &y, &z})
    check_tensor(*tensor, x.dtype, x.count(), "a tensor of stochastic depth");
  CHOIR_CHECK(a.probability >= 0 && a.probability < 1, "probability {}", a.probability);
  CHOIR_CHECK(a.tokens >= 1 && a.first_row >= 0, "{} tokens from row {}", a.tokens, a.first_row);
}

}  // namespace

void stochastic_depth_forward(const Stream& stream, const StochasticDepth& args,
                              const TensorView& x, const TensorView& f, const TensorView& out) {
  check(args, x, f, out);
  stream.count(3.0 * static_cast<double>(x.count()), 3 * as_bytes(x));
  if (on_cuda(stream)) return cuda::stochastic_depth_forward(stream, args, x, f, out);
  if (!computes(stream)) return;
  with_element(x.dtype,
               [&](auto t) { cpu::stochastic_depth_forward<decltype(t)>(args, x, f, out); });
}

void stochastic_depth_backward(const Stream& stream, const StochasticDepth& args,
                               const TensorView& d_out, const TensorView& d_f,
                               const TensorView& d_x) {
  check(args, d_out, d_f, d_x);
  stream.count(2.0 * static_cast<double>(d_out.count()), 3 * as_bytes(d_out));
  if (on_cuda(stream)) return cuda::stochastic_depth_backward(stream, args, d_out, d_f, d_x);
  if (!computes(stream)) return;
  with_element(d_out.dtype,
               [&](auto t) { cpu::stochastic_depth_backward<decltype(t)>(args, d_out, d_f, d_x); });
}

}  // namespace choir::ops

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

namespace choir::ref {

void stochastic_depth_forward(const ops::StochasticDepth& args, const TensorView& x,
                              const TensorView& f, const TensorView& out) {
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double a = depth_factor(args, i / x.shape.back());
    out.as<double>()[i] = (1 - a) * x.as<double>()[i] + a * f.as<double>()[i];
  }
}

void stochastic_depth_backward(const ops::StochasticDepth& args, const TensorView& d_out,
                               const TensorView& d_f, const TensorView& d_x) {
  for (std::int64_t i = 0; i < d_out.count(); ++i) {
    const double a = depth_factor(args, i / d_out.shape.back()), d = d_out.as<double>()[i];
    d_f.as<double>()[i] = a * d;
    d_x.as<double>()[i] = (1 - a) * d;
  }
}

}  // namespace choir::ref
