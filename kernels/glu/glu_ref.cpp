#include <cmath>

#include "kernels/cpu/frames.hpp"
#include "kernels/glu/glu.hpp"

namespace choir::ref {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

void glu_forward(const TensorView& x, const TensorView& y, const std::int32_t* lengths,
                 std::int64_t tokens) {
  const std::int64_t width = y.shape.back();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t r = i / width, at = 2 * r * width + i % width;
    const bool counts = r % tokens < frames_of(lengths, r / tokens, tokens);
    y.as<double>()[i] = counts ? x.as<double>()[at] * logistic(x.as<double>()[at + width]) : 0.0;
  }
}

void glu_backward(const TensorView& x, const TensorView& d_y, const TensorView& d_x,
                  const std::int32_t* lengths, std::int64_t tokens) {
  const std::int64_t width = d_y.shape.back();
  for (std::int64_t i = 0; i < d_y.count(); ++i) {
    const std::int64_t r = i / width, at = 2 * r * width + i % width;
    const bool counts = r % tokens < frames_of(lengths, r / tokens, tokens);
    const double g = d_y.as<double>()[i], a = x.as<double>()[at];
    const double gate = x.as<double>()[at + width], s = logistic(gate);
    d_x.as<double>()[at] = counts ? g * s : 0;
    d_x.as<double>()[at + width] = counts ? g * a * s * logistic(-gate) : 0;
  }
}

}  // namespace choir::ref
