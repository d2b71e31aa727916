#include "kernels/feature_statistics/feature_statistics.hpp"

#include <cmath>

namespace choir::ref {

void normalise_features(const TensorView& x, const std::int32_t* lengths) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t m = 0; m < bins; ++m) {
      double* column = x.as<double>() + b * frames * bins + m;
      const std::int64_t n = lengths[b];
      double sum = 0, squares = 0;
      for (std::int64_t t = 0; t < n; ++t) sum += column[t * bins];
      const double mean = sum / static_cast<double>(n);
      for (std::int64_t t = 0; t < n; ++t) squares += std::pow(column[t * bins] - mean, 2);
      const double deviation = n < 2 ? 0 : std::sqrt(squares / static_cast<double>(n - 1));
      for (std::int64_t t = 0; t < frames; ++t)
        column[t * bins] =
            t < n ? (column[t * bins] - mean) / (deviation + kStandardDeviationGuard) : 0;
    }
}

}  // namespace choir::ref
