#include <cmath>

#include "kernels/rope/rope.hpp"

namespace choir::ref {

void rope(const ops::Rope& args, double theta) {
  const std::int64_t rows = args.x.shape.rows(), row_width = args.x.shape.back();
  const std::int64_t width = args.head_width, half = width / 2;
  const bool neighbours = args.pairing == ops::RopePairing::interleaved;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < args.heads; ++h)
      for (std::int64_t i = 0; i < half; ++i) {
        std::int64_t row = args.first_position + r % args.tokens;
        if (row >= args.position_end) row = args.position_end - 1;
        const auto position = static_cast<double>(row);
        const double angle =
            (args.inverse ? -1 : 1) * position *
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
        double* head = args.x.as<double>() + r * row_width + h * width;
        double& first = head[neighbours ? 2 * i : i];
        double& second = head[neighbours ? 2 * i + 1 : i + half];
        const double a = first, b = second;
        first = a * std::cos(angle) - b * std::sin(angle);
        second = a * std::sin(angle) + b * std::cos(angle);
      }
}

}  // namespace choir::ref
