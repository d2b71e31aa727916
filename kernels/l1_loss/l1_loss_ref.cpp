#include <cmath>

#include "kernels/l1_loss/l1_loss.hpp"

namespace choir::ref {

void l1_loss(const ops::L1Loss& args) {
  const std::int64_t width = args.predicted.shape.back();
  const double step = args.scale * (args.device_scale ? *args.device_scale : 1) * args.factor;
  for (std::int64_t r = 0; r < args.predicted.shape.rows(); ++r) {
    const bool counts = args.lengths == nullptr || r % args.tokens < args.lengths[r / args.tokens];
    double sum = 0;
    for (std::int64_t c = r * width; c < (r + 1) * width; ++c) {
      const double difference =
          counts ? args.predicted.as<double>()[c] - args.target.as<double>()[c] : 0;
      sum += std::fabs(difference);
      if (args.write_gradient)
        args.predicted.as<double>()[c] = difference > 0 ? step : difference < 0 ? -step : 0;
    }
    args.losses.as<double>()[r] = args.factor * sum;
  }
}

}  // namespace choir::ref
