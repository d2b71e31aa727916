#include "choir/ops/activation.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

/// Operations per element: relu counts as one, the others as 30 because of one exp and one
/// division.
double flops(Activation kind, std::int64_t n) {
  return (kind == Activation::relu ? 1.0 : 30.0) * static_cast<double>(n);
}

}  // namespace

void activation_forward(const Stream& stream, Activation kind, const TensorView& x,
                        const TensorView& y) {
  CHOIR_CHECK(y.shape.rank() > 0 && x.shape.rank() > 0, "activation of a scalar");
  CHOIR_CHECK(x.shape.back() == y.shape.back() * activation_inputs(kind),
              "input of width {} for output of width {}", x.shape.back(), y.shape.back());
  check_tensor(x, y.dtype, y.count() * activation_inputs(kind), "x");
  check_tensor(y, y.dtype, y.count(), "y");
  CHOIR_CHECK(kind != Activation::swiglu || x.data != y.data, "swiglu does not run in place");
  stream.count(flops(kind, y.count()), as_bytes(x) + as_bytes(y));
  if (on_cuda(stream)) return cuda::activation_forward(stream, kind, x, y);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::activation_forward<decltype(t)>(kind, x, y); });
}

void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x) {
  CHOIR_CHECK(d_y.shape.rank() > 0 && x.shape.rank() > 0, "activation of a scalar");
  CHOIR_CHECK(x.shape.back() == d_y.shape.back() * activation_inputs(kind),
              "input of width {} for output of width {}", x.shape.back(), d_y.shape.back());
  check_tensor(x, d_y.dtype, d_y.count() * activation_inputs(kind), "x");
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_x, d_y.dtype, x.count(), "d_x");
  stream.count(flops(kind, d_y.count()), as_bytes(x) + as_bytes(d_y) + as_bytes(d_x));
  if (on_cuda(stream)) return cuda::activation_backward(stream, kind, x, d_y, d_x);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::activation_backward<decltype(t)>(kind, x, d_y, d_x); });
}

}  // namespace choir::ops
