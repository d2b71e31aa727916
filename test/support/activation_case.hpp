#pragma once
// The nonlinearities against the reference, on any device.
#include "choir/ops/activation.hpp"
#include "kernels/activation/activation.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct ActivationCase {
  ops::Activation kind;
  DType dtype;
  std::int64_t rows, width;
  int skew = 0;
  /// Relative error of the probabilities with which the device computes, beyond that of single
  /// precision.
  double approximation = 0;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("kind {} {} [{}, {}] skew {}", static_cast<int>(kind), name_of(dtype),
                             rows, width, skew));
    const Stream stream(device);
    const std::int64_t in_width = width * ops::activation_inputs(kind);
    const HostTensor x = HostTensor::normal(dtype, {rows, in_width}, 1, 3);
    const HostTensor d_y = HostTensor::normal(dtype, {rows, width}, 2);
    HostTensor y(dtype, {rows, width}), d_x(dtype, {rows, in_width});
    Mirror mirror(device);
    const TensorView in = mirror.in(x, skew);
    ops::activation_forward(stream, kind, in, mirror.io(y, skew));
    ops::activation_backward(stream, kind, in, mirror.in(d_y, skew), mirror.io(d_x, skew));
    mirror.fetch();
    HostTensor exact_y(DType::f64, {rows, width}), exact_d_x(DType::f64, {rows, in_width});
    ref::activation_forward(kind, x.to(DType::f64), exact_y);
    ref::activation_backward(kind, x.to(DType::f64), d_y.to(DType::f64), exact_d_x);
    // |x| stays below 15. The exponent's argument (x^2/2, or 2u of up to 25 where the result is not
    // yet negligible) is rounded to half an ulp of itself: at most 16 u absolute on a factor below
    // 1 that multiplies |x| < 15; 1e-4 of that survives where the argument is that large.
    const double u = unit_roundoff(sum_dtype(dtype)), store = unit_roundoff(dtype);
    const double relative = store + 16 * u + approximation;
    expect_close(y, exact_y, relative, 64 * u, "y");
    // The slope is a sum of terms up to 1 that may cancel; it multiplies d_y (and, gated, x).
    double factor = 1;
    for (std::int64_t i = 0; i < d_y.count(); ++i) factor = std::max(factor, std::fabs(d_y[i]));
    if (ops::is_gated(kind)) factor *= 15;
    expect_close(d_x, exact_d_x, relative, 64 * u + approximation * factor, "d_x");
  }
};

}  // namespace choir::test
