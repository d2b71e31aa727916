// SpecAugment and the normalisation of features on the GPU. SpecAugment: a block computes all masks
// of its utterance and clears the elements they cover in some of its frames, one warp per frame;
// every element has one writer. Floor: see kernels/features/features.hpp.

#include "kernels/features/features.hpp"

#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kMaskThreads = 256, kMaskFrames = 64;  ///< frames per block

__global__ void __launch_bounds__(kMaskThreads)
    spec_augment_kernel(ops::SpecAugment options, float* x, const std::int32_t* lengths,
                        const std::int64_t* sample_ids, PhiloxKey key, std::int64_t frames,
                        int bins, unsigned parts) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(Mask, masks, kMostMasks);
  const std::int64_t row = blockIdx.x / parts;
  const std::int64_t first = std::int64_t{blockIdx.x % parts} * kMaskFrames;
  const std::int64_t length = lengths[row] < frames ? lengths[row] : frames;
  if (first >= length) return;
  const int of_time = static_cast<int>(options.time_masks);
  const int all = of_time + static_cast<int>(options.frequency_masks);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < of_time)
    masks[thread] =
        time_mask(options, key, static_cast<std::uint32_t>(thread), sample_ids[row], length);
  else if (thread < all)
    masks[thread] = frequency_mask(options, key, static_cast<std::uint32_t>(thread - of_time),
                                   sample_ids[row], bins);
  __syncthreads();
  const std::int64_t last = first + kMaskFrames < length ? first + kMaskFrames : length;
  for (std::int64_t t = first + thread / kWarp; t < last; t += kMaskThreads / kWarp) {
    bool whole = false;
    for (int i = 0; i < of_time; ++i)
      whole |= t >= masks[i].start && t < masks[i].start + masks[i].width;
    float* frame = x + (row * frames + t) * bins;
    for (int f = thread % kWarp; f < bins; f += kWarp) {
      bool masked = whole;
      for (int i = of_time; i < all; ++i)
        masked |= f >= masks[i].start && f < masks[i].start + masks[i].width;
      if (masked) frame[f] = 0.0f;
    }
  }
}

void spec_augment(const Stream& stream, const ops::SpecAugment& options, const TensorView& x,
                  const std::int32_t* lengths, const std::int64_t* sample_ids, PhiloxKey key) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  static_assert(kMostMasks <= kMaskThreads);
  const std::int64_t parts = blocks_for(x.shape[1], kMaskFrames), blocks = x.shape[0] * parts;
  launch(stream, "spec_augment", spec_augment_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(kMaskThreads)}, options, x.as<float>(), lengths,
         sample_ids, key, x.shape[1], static_cast<int>(x.shape[2]), static_cast<unsigned>(parts));
}

// Normalisation of features per utterance and bin: a block owns 32 bins of an utterance, one per
// lane (128 bytes per load), and each warp takes every 32nd frame. Floor: see
// kernels/features/features.hpp; the second and third pass read from L2. A thread sums its frames
// (every 32nd) in f32, the 32 sums of a bin are added in f64, in order: the result does not depend
// on the padding or the batch.

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
  follow_earlier();
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

void normalise_features(const Stream& stream, const TensorView& x, const std::int32_t* lengths) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  const std::int64_t parts = blocks_for(x.shape[2], kWarp), blocks = x.shape[0] * parts;
  launch(stream, "normalise_features", normalise_features_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(kFeatureThreads)}, x.as<float>(), lengths,
         x.shape[1], static_cast<int>(x.shape[2]), static_cast<unsigned>(parts));
}

}  // namespace choir::cuda
