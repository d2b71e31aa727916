#include <cmath>

#include "kernels/batch_norm/batch_norm.hpp"
#include "kernels/cpu/frames.hpp"

namespace choir::ref {
namespace {

bool counts(const std::int32_t* lengths, std::int64_t tokens, std::int64_t row) {
  return row % tokens < frames_of(lengths, row / tokens, tokens);
}

}  // namespace

void batch_norm_forward(const ops::BatchNorm& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const double* x = args.x.as<double>();
  for (std::int64_t c = 0; c < width; ++c) {
    if (args.training) {
      double n = 0, sum = 0, squares = 0;
      for (std::int64_t r = 0; r < rows; ++r)
        if (counts(args.lengths, args.tokens, r)) n += 1, sum += x[r * width + c];
      const double mean = n > 0 ? sum / n : 0;
      if (!args.frames.empty()) *args.frames.as<double>() = n;
      for (std::int64_t r = 0; r < rows; ++r)
        if (counts(args.lengths, args.tokens, r)) squares += std::pow(x[r * width + c] - mean, 2);
      args.mean.as<double>()[c] = mean;
      args.rstd.as<double>()[c] = 1 / std::sqrt((n > 0 ? squares / n : 0) + args.eps);
      args.running_mean.as<double>()[c] = mean;
      args.running_variance.as<double>()[c] = n > 1 ? squares / (n - 1) : 0;
    } else {
      args.mean.as<double>()[c] = args.running_mean.as<double>()[c];
      args.rstd.as<double>()[c] = 1 / std::sqrt(args.running_variance.as<double>()[c] + args.eps);
    }
    for (std::int64_t r = 0; r < rows; ++r)
      args.y.as<double>()[r * width + c] = counts(args.lengths, args.tokens, r)
                                               ? (x[r * width + c] - args.mean.as<double>()[c]) *
                                                         args.rstd.as<double>()[c] *
                                                         args.weight.as<double>()[c] +
                                                     args.bias.as<double>()[c]
                                               : 0.0;
  }
}

void batch_norm_backward(const ops::BatchNormBackward& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const double *x = args.x.as<double>(), *d_y = args.d_y.as<double>();
  for (std::int64_t c = 0; c < width; ++c) {
    const double mean = args.mean.as<double>()[c], rstd = args.rstd.as<double>()[c];
    double n = 0, sum = 0, products = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      if (counts(args.lengths, args.tokens, r)) {
        n += 1, sum += d_y[r * width + c];
        products += d_y[r * width + c] * (x[r * width + c] - mean) * rstd;
      }
    if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += sum;
    if (!args.d_weight.empty()) args.d_weight.as<double>()[c] += products;
    for (std::int64_t r = 0; r < rows; ++r)
      args.d_x.as<double>()[r * width + c] =
          counts(args.lengths, args.tokens, r)
              ? args.weight.as<double>()[c] * rstd *
                    (d_y[r * width + c] - sum / n - (x[r * width + c] - mean) * rstd * products / n)
              : 0.0;
  }
}

}  // namespace choir::ref
