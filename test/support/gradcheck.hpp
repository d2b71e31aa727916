#pragma once
// Compares gradients with central finite differences, element by element and along random
// directions, in f64.
#include <functional>
#include <string>

#include "test/support/op_test.hpp"

namespace choir {

inline double dot(const TensorView& a, const TensorView& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count(); ++i)
    sum += element_as_double(a, i) * element_as_double(b, i);
  return sum;
}

/// d loss / d x by central differences; `loss` reads x (f64) from wherever it is. The truncation
/// error is h^2 / 6 times the third derivative, the rounding error about 2^-52 |loss| / h.
inline HostTensor numeric_gradient(HostTensor& x, const std::function<double()>& loss,
                                   double h = 1e-5) {
  HostTensor gradient(DType::f64, x.shape());
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double saved = x[i];
    x.set(i, saved + h);
    const double above = loss();
    x.set(i, saved - h);
    const double below = loss();
    x.set(i, saved);
    gradient.set(i, (above - below) / (2 * h));
  }
  return gradient;
}

/// The errors named above, for losses and third derivatives of order one: 1e-10 + 2^-52/1e-5 =
/// 1e-10.
inline void expect_gradient(const TensorView& analytic, HostTensor& x,
                            const std::function<double()>& loss, const std::string& what,
                            double tolerance = 1e-8) {
  const HostTensor numeric = numeric_gradient(x, loss);
  expect_close(analytic, numeric, tolerance, tolerance, "gradient of " + what);
}

/// Vector-Jacobian dot test for sizes with too many elements for differences by element: with u a
/// random direction, (L(x + hu) - L(x - hu)) / 2h = <u, gradient>, where L = <w, f(x)> is the value
/// of `loss`.
inline void expect_directional(const TensorView& analytic, HostTensor& x, std::uint64_t seed,
                               const std::function<double()>& loss, const std::string& what,
                               double tolerance = 1e-7, double h = 1e-5) {
  HostTensor u = HostTensor::normal(DType::f64, x.shape(), seed);
  const double length = std::sqrt(dot(u, u));
  for (std::int64_t i = 0; i < u.count(); ++i) u.set(i, u[i] / length);
  const HostTensor saved = x;
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, saved[i] + h * u[i]);
  const double above = loss();
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, saved[i] - h * u[i]);
  const double below = loss();
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, saved[i]);
  const double along = dot(u, analytic);
  EXPECT_NEAR((above - below) / (2 * h), along,
              tolerance * (1 + std::sqrt(dot(analytic, analytic))))
      << "directional derivative of " << what;
}

}  // namespace choir
