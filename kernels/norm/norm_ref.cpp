#include <cmath>

#include "kernels/norm/norm.hpp"

namespace choir::ref {

void norm_forward(const ops::NormForward& args) {
  const std::int64_t width = args.residual.shape.back(), rows = args.residual.shape.rows();
  const bool layer = args.kind == ops::Norm::layernorm;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* x = args.residual.as<double>() + r * width;
    if (!args.delta.empty()) {
      double* sum = args.sum.as<double>() + r * width;
      for (std::int64_t c = 0; c < width; ++c)
        sum[c] = x[c] + args.delta.as<double>()[r * width + c];
      x = sum;
    }
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; layer && c < width; ++c) mean += x[c] / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c)
      variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + args.eps);
    if (layer) args.mean.as<double>()[r] = mean;
    args.rstd.as<double>()[r] = rstd;
    for (std::int64_t c = 0; c < width; ++c)
      args.out.as<double>()[r * width + c] = (x[c] - mean) * rstd * args.weight.as<double>()[c] +
                                             (args.bias.empty() ? 0 : args.bias.as<double>()[c]);
  }
}

void norm_backward(const ops::NormBackward& args) {
  const std::int64_t width = args.d_out.shape.back(), rows = args.d_out.shape.rows();
  const bool layer = args.kind == ops::Norm::layernorm;
  const double* weight = args.weight.as<double>();
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* dy = args.d_out.as<double>() + r * width;
    const double* x = args.sum.as<double>() + r * width;
    double* dx = args.d_sum.as<double>() + r * width;
    const double mean = layer ? args.mean.as<double>()[r] : 0, rstd = args.rstd.as<double>()[r];
    double mean_g = 0, mean_gh = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double h = (x[c] - mean) * rstd;
      if (layer) mean_g += dy[c] * weight[c] / static_cast<double>(width);
      mean_gh += dy[c] * weight[c] * h / static_cast<double>(width);
    }
    for (std::int64_t c = 0; c < width; ++c) {
      const double h = (x[c] - mean) * rstd;
      dx[c] = (args.accumulate ? dx[c] : 0) + rstd * (dy[c] * weight[c] - mean_g - h * mean_gh);
      args.d_weight.as<double>()[c] += dy[c] * h;
      if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += dy[c];
    }
  }
}

}  // namespace choir::ref
