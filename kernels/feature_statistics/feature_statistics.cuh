#pragma once
// Normalisation of features per utterance and bin on the GPU: a block owns 32 bins of an utterance,
// one per lane (128 bytes per load), and each warp takes every 32nd frame. Floor: see
// kernels/feature_statistics/feature_statistics.hpp; the second and third pass read from L2. A
// thread sums its frames (every 32nd) in f32, the 32 sums of a bin are added in f64, in order: the
// result does not depend on the padding or the batch.
#include "kernels/cuda/launch.cuh"
#include "kernels/feature_statistics/feature_statistics.hpp"

namespace choir::cuda {

constexpr int kFeatureWarps = 32, kFeatureThreads = kFeatureWarps * kWarp;

/// Sums value over the warps for every lane; all threads get the sum of their lane.
__device__ inline double sum_over_warps(float value, float* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // readers of an earlier call are done
  scratch[warp * kWarp + lane] = value;
  __syncthreads();
  double sum = 0;
#pragma unroll 8
  for (int w = 0; w < kFeatureWarps; ++w) sum += static_cast<double>(scratch[w * kWarp + lane]);
  return sum;
}

/// x [B, frames, bins]; an utterance has `parts` blocks for its bins.
__global__ void __launch_bounds__(kFeatureThreads)
    normalise_features_kernel(float* x, const std::int32_t* lengths, std::int64_t frames, int bins,
                              unsigned parts) {
  CHOIR_SHARED_ARRAY(float, scratch, kFeatureThreads);
  const std::int64_t row = blockIdx.x / parts;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int bin =
      static_cast<int>(blockIdx.x % parts) * kWarp + static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t length = lengths[row] < frames ? lengths[row] : frames;
  const std::int64_t n = bin < bins ? length : 0, end = bin < bins ? frames : 0;
  float* column = x + row * frames * bins + bin;
  float sum = 0, squares = 0;
#pragma unroll 4
  for (std::int64_t t = warp; t < n; t += kFeatureWarps) sum += column[t * bins];
  const auto count = static_cast<double>(length);
  const auto mean = static_cast<float>(sum_over_warps(sum, scratch) / count);
#pragma unroll 4
  for (std::int64_t t = warp; t < n; t += kFeatureWarps) {
    const float d = column[t * bins] - mean;
    squares += d * d;
  }
  const double total = sum_over_warps(squares, scratch);
  const double deviation = length < 2 ? 0.0 : sqrt(total / (count - 1));
  const auto scale = static_cast<float>(1 / (deviation + kStandardDeviationGuard));
#pragma unroll 4
  for (std::int64_t t = warp; t < n; t += kFeatureWarps)
    column[t * bins] = (column[t * bins] - mean) * scale;
  // Begins at this warp's first frame at or after n.
  for (std::int64_t t = n + (warp + kFeatureWarps - n % kFeatureWarps) % kFeatureWarps; t < end;
       t += kFeatureWarps)
    column[t * bins] = 0.0f;
}

}  // namespace choir::cuda
