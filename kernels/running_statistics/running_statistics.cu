#include "kernels/running_statistics/running_statistics.cuh"

#include "kernels/running_statistics/running_statistics.hpp"

namespace choir::cuda {

void update_running_statistics(const Stream& stream, const ops::RunningUpdate& args) {
  const RunningLines lines{args.records.as<float>(),
                           args.frames.as<float>(),
                           args.mean.as<float>(),
                           args.variance.as<float>(),
                           args.frames.count(),
                           args.mean.count(),
                           args.momentum,
                           args.control != nullptr ? &args.control->apply : nullptr};
  if (lines.width == 0) return;
  launch(stream, "running_statistics", running_statistics_kernel<>,
         {static_cast<unsigned>(blocks_for(2 * lines.width, kRunningThreads)), kRunningThreads},
         lines);
}

}  // namespace choir::cuda
