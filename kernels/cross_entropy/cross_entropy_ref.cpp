#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy/cross_entropy.hpp"

namespace choir::ref {

void cross_entropy(const ops::CrossEntropy& args) {
  const double scale = args.scale * (args.device_scale ? *args.device_scale : 1.0);
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  for (std::int64_t r = 0; r < rows; ++r) {
    double* z = args.logits.as<double>() + r * columns;
    const double weight = args.weights.empty() ? 1.0 : args.weights.as<float>()[r];
    const std::int32_t target = weight == 0 ? -1 : args.targets.as<std::int32_t>()[r];
    args.losses.as<double>()[r] = 0;
    if (target < 0) {
      if (args.write_gradient) std::fill(z, z + columns, 0.0);
      continue;
    }
    const double max = *std::max_element(z, z + args.vocabulary);
    double sum = 0;
    for (std::int64_t c = 0; c < args.vocabulary; ++c) sum += std::exp(z[c] - max);
    double loss = 0;
    const auto v = static_cast<double>(args.vocabulary), e = args.label_smoothing;
    for (std::int64_t c = 0; c < args.vocabulary; ++c) {
      const double q = (c == target ? 1 - e : 0) + e / v;
      if (q > 0) loss += q * (std::log(sum) + max - z[c]);
      if (args.write_gradient) z[c] = (std::exp(z[c] - max) / sum - q) * scale * weight;
    }
    args.losses.as<double>()[r] = weight * loss;
    if (args.write_gradient) std::fill(z + args.vocabulary, z + columns, 0.0);
  }
}

}  // namespace choir::ref
