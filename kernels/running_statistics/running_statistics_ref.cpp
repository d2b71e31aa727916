#include "kernels/running_statistics/running_statistics.hpp"

namespace choir::ref {

void update_running_statistics(const ops::RunningUpdate& args) {
  if (args.control != nullptr && args.control->apply == 0) return;
  const std::int64_t width = args.mean.count();
  for (std::int64_t m = 0; m < args.frames.count(); ++m) {
    if (args.frames.as<double>()[m] < 2) continue;
    const double* own = args.records.as<double>() + 2 * m * width;
    for (std::int64_t c = 0; c < width; ++c) {
      double &mean = args.mean.as<double>()[c], &variance = args.variance.as<double>()[c];
      mean = (1 - args.momentum) * mean + args.momentum * own[c];
      variance = (1 - args.momentum) * variance + args.momentum * own[width + c];
    }
  }
}

}  // namespace choir::ref
