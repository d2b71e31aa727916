#pragma once
// Absolute errors of rows. A warp has a row and each lane every 32nd element, so that reads and
// writes cover whole memory segments. Floor per element of 16 bits: 8 bytes.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

template <class T>
struct L1LossArguments {
  T* predicted;
  const float* target;
  const std::int32_t* lengths;  ///< may be nullptr
  float* losses;
  std::int64_t rows, tokens;
  std::int64_t width;
  float factor;
  double scale;                ///< includes the factor
  const double* device_scale;  ///< may be nullptr
  bool write_gradient;
};

constexpr int kL1LossThreads = 256;

template <class T>
__global__ void __launch_bounds__(kL1LossThreads) l1_loss_kernel(L1LossArguments<T> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kL1LossThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= a.rows) return;
  const bool counts = a.lengths == nullptr || row % a.tokens < a.lengths[row / a.tokens];
  const auto step =
      static_cast<float>(a.device_scale == nullptr ? a.scale : a.scale * *a.device_scale);
  T* x = a.predicted + row * a.width;
  const float* target = a.target + row * a.width;
  float sum = 0;
  for (std::int64_t c = lane; c < a.width; c += kWarp) {
    const float difference = counts ? to_float(x[c]) - target[c] : 0.0f;
    sum += fabsf(difference);
    if (a.write_gradient)
      x[c] = from_float<T>(difference > 0.0f ? step : difference < 0.0f ? -step : 0.0f);
  }
  sum = warp_reduce<Sum>(sum);
  if (lane == 0) a.losses[row] = a.factor * sum;
}

}  // namespace choir::cuda
