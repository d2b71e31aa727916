#include <cmath>

#include "kernels/split_norm/split_norm.hpp"

namespace choir::ref {

void split_norm_moments(const TensorView& x, const TensorView& moments) {
  const std::int64_t width = x.shape.back();
  for (std::int64_t r = 0; r < x.shape.rows(); ++r) {
    const double* row = x.as<double>() + r * width;
    double sum = 0, square = 0;
    for (std::int64_t c = 0; c < width; ++c) sum += row[c];
    const double mean = sum / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c) square += (row[c] - mean) * (row[c] - mean);
    moments.as<double>()[2 * r] = mean;
    moments.as<double>()[2 * r + 1] = square;
  }
}

void split_norm_forward(const ops::SplitNormForward& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const std::int64_t ranks = args.moments.shape[0];
  const auto each = static_cast<double>(width), all = each * static_cast<double>(ranks);
  for (std::int64_t r = 0; r < rows; ++r) {
    // Computes the variance from the moments about 0, which differs from the formula of the
    // kernels.
    double sum = 0, square = 0;
    for (std::int64_t k = 0; k < ranks; ++k) {
      const double* m = args.moments.as<double>() + (k * rows + r) * 2;
      sum += each * m[0];
      square += m[1] + each * m[0] * m[0];
    }
    const double mean = sum / all, rstd = 1 / std::sqrt(square / all - mean * mean + args.eps);
    args.mean.as<double>()[r] = mean;
    args.rstd.as<double>()[r] = rstd;
    for (std::int64_t c = 0; c < width; ++c)
      args.out.as<double>()[r * width + c] =
          (args.x.as<double>()[r * width + c] - mean) * rstd * args.weight.as<double>()[c] +
          args.bias.as<double>()[c];
  }
}

void split_norm_sums(const ops::SplitNormBackward& args) {
  const std::int64_t width = args.x.shape.back();
  for (std::int64_t r = 0; r < args.x.shape.rows(); ++r) {
    double sum = 0, product = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = args.d_out.as<double>()[r * width + c] * args.weight.as<double>()[c];
      sum += g;
      product += g * (args.x.as<double>()[r * width + c] - args.mean.as<double>()[r]) *
                 args.rstd.as<double>()[r];
    }
    args.sums.as<double>()[2 * r] = sum;
    args.sums.as<double>()[2 * r + 1] = product;
  }
}

void split_norm_backward(const ops::SplitNormBackward& args) {
  const std::int64_t width = args.x.shape.back();
  const auto all = static_cast<double>(args.width);
  for (std::int64_t r = 0; r < args.x.shape.rows(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const double dy = args.d_out.as<double>()[r * width + c], rstd = args.rstd.as<double>()[r];
      const double h = (args.x.as<double>()[r * width + c] - args.mean.as<double>()[r]) * rstd;
      const double* sums = args.sums.as<double>() + 2 * r;
      args.d_x.as<double>()[r * width + c] =
          rstd * (dy * args.weight.as<double>()[c] - sums[0] / all - h * sums[1] / all);
      args.d_weight.as<double>()[c] += dy * h;
      args.d_bias.as<double>()[c] += dy;
    }
}

}  // namespace choir::ref
