#pragma once
// Running statistics on the GPU: one thread per channel and kind (mean, variance), micro-batches in
// order.
#include "kernels/cuda/access.cuh"

namespace choir::cuda {

constexpr int kRunningThreads = 128;

struct RunningLines {
  const float *records, *frames;
  float *mean, *variance;
  std::int64_t count, width;
  double momentum;
  const double* apply;  ///< nullptr: 1
};

template <class Unused = void>
__global__ void __launch_bounds__(kRunningThreads) running_statistics_kernel(RunningLines a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunningThreads + threadIdx.x;
  if (i >= 2 * a.width || (a.apply != nullptr && *a.apply == 0)) return;
  float* const result = i < a.width ? a.mean + i : a.variance + (i - a.width);
  double sum = *result;
  for (std::int64_t m = 0; m < a.count; ++m) {
    if (a.frames[m] < 2) continue;
    sum = (1 - a.momentum) * sum + a.momentum * a.records[2 * m * a.width + i];
  }
  *result = static_cast<float>(sum);
}

}  // namespace choir::cuda
