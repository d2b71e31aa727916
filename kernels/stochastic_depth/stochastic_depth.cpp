#include "choir/ops/stochastic_depth.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/stochastic_depth/stochastic_depth.hpp"

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
