#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy.hpp"

namespace choir::ref {

void cross_entropy(const ops::CrossEntropy& args) {
  const double scale = args.scale * (args.device_scale ? *args.device_scale : 1.0);
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  for (std::int64_t r = 0; r < rows; ++r) {
    double* z = args.logits.as<double>() + r * columns;
    const std::int32_t target = args.targets.as<std::int32_t>()[r];
    args.losses.as<double>()[r] = 0;
    if (target < 0) {
      if (args.write_gradient) std::fill(z, z + columns, 0.0);
      continue;
    }
    const double max = *std::max_element(z, z + args.vocabulary);
    double sum = 0;
    for (std::int64_t c = 0; c < args.vocabulary; ++c) sum += std::exp(z[c] - max);
    args.losses.as<double>()[r] = std::log(sum) + max - z[target];
    for (std::int64_t c = 0; args.write_gradient && c < columns; ++c)
      z[c] = c < args.vocabulary ? (std::exp(z[c] - max) / sum - (c == target ? 1 : 0)) * scale : 0;
  }
}

}  // namespace choir::ref
