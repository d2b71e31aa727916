#include <cmath>

#include "kernels/activation/activation.hpp"

namespace choir::ref {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

double value(ops::Activation kind, double x) {
  switch (kind) {
    case ops::Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ops::Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ops::Activation::relu:
      return x < 0 ? 0 : x;
    case ops::Activation::swiglu:
    case ops::Activation::silu:
      return x * logistic(x);
  }
  return NAN;
}

double slope(ops::Activation kind, double x) {
  switch (kind) {
    case ops::Activation::gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    case ops::Activation::gelu_tanh: {
      const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      return 0.5 * (1 + std::tanh(u)) + 0.5 * x / (std::cosh(u) * std::cosh(u)) *
                                            std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    case ops::Activation::relu:
      return x > 0 ? 1 : 0;
    case ops::Activation::swiglu:
    case ops::Activation::silu:
      return logistic(x) * (1 + x * (1 - logistic(x)));
  }
  return NAN;
}

}  // namespace

void activation_forward(ops::Activation kind, const TensorView& x, const TensorView& y) {
  const std::int64_t width = y.shape.back();
  const double* in = x.as<double>();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t r = i / width, c = i % width;
    y.as<double>()[i] = kind == ops::Activation::swiglu
                            ? value(kind, in[2 * r * width + c]) * in[(2 * r + 1) * width + c]
                            : value(kind, in[i]);
  }
}

void activation_backward(ops::Activation kind, const TensorView& x, const TensorView& d_y,
                         const TensorView& d_x) {
  const std::int64_t width = d_y.shape.back();
  const double *in = x.as<double>(), *dy = d_y.as<double>();
  double* dx = d_x.as<double>();
  for (std::int64_t i = 0; i < d_y.count(); ++i) {
    if (kind != ops::Activation::swiglu) {
      dx[i] = dy[i] * slope(kind, in[i]);
      continue;
    }
    const std::int64_t gate = 2 * (i / width) * width + i % width, up = gate + width;
    dx[gate] = dy[i] * in[up] * slope(kind, in[gate]);
    dx[up] = dy[i] * value(kind, in[gate]);
  }
}

}  // namespace choir::ref
