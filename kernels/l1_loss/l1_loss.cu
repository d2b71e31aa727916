// Absolute errors of rows. A warp has a row and each lane every 32nd element, so that reads and
// writes cover whole memory segments. Floor per element of 16 bits: 8 bytes.

#include "kernels/l1_loss/l1_loss.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

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
  follow_earlier();
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

void l1_loss(const Stream& stream, const ops::L1Loss& args) {
  with_element(args.predicted.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t rows = args.predicted.shape.rows();
    const std::int64_t blocks = blocks_for(rows, kL1LossThreads / kWarp);
    CHOIR_CHECK(blocks <= kMostItems, "{} rows of a loss in one call", rows);
    launch(stream, "l1_loss", l1_loss_kernel<T>,
           {dim3(static_cast<unsigned>(blocks)), dim3(kL1LossThreads)},
           L1LossArguments<T>{args.predicted.as<T>(), args.target.as<float>(), args.lengths,
                              args.losses.as<float>(), rows, args.tokens,
                              args.predicted.shape.back(), static_cast<float>(args.factor),
                              args.scale * args.factor, args.device_scale, args.write_gradient});
  });
}

}  // namespace choir::cuda
