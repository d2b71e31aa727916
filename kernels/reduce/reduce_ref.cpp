#include "kernels/reduce/reduce.hpp"

namespace choir::ref {
namespace {

double tree(const double* x, std::int64_t n) {
  if (n == 0) return 0;
  if (n == 1) return x[0];
  std::int64_t left = 1;
  while (2 * left < n) left *= 2;
  return tree(x, left) + tree(x + left, n - left);
}

}  // namespace

void sum_of_squares(const TensorView& x, const TensorView& partials) {
  for (std::int64_t i = 0; i < partials.count(); ++i) partials.as<double>()[i] = 0;
  for (std::int64_t i = 0; i < x.count(); ++i)
    partials.as<double>()[i / ops::kNormChunk] += x.as<double>()[i] * x.as<double>()[i];
}

void tree_sum(const TensorView& x, const TensorView& total) {
  *total.as<double>() = tree(x.as<double>(), x.count());
}

void bias_gradient(const TensorView& d_y, const TensorView& d_bias) {
  for (std::int64_t i = 0; i < d_y.count(); ++i)
    d_bias.as<double>()[i % d_bias.count()] += d_y.as<double>()[i];
}

}  // namespace choir::ref
