#pragma once
// SpecAugment on the GPU: a block computes all masks of its utterance and clears the elements they
// cover in some of its frames, one warp per frame; every element has one writer. Floor: see
// kernels/spec_augment/spec_augment.hpp.
#include "kernels/cuda/launch.cuh"
#include "kernels/spec_augment/spec_augment.hpp"

namespace choir::cuda {

constexpr int kMaskThreads = 256, kMaskFrames = 64;  ///< frames per block

__global__ void __launch_bounds__(kMaskThreads)
    spec_augment_kernel(ops::SpecAugment options, float* x, const std::int32_t* lengths,
                        const std::int64_t* sample_ids, PhiloxKey key, std::int64_t frames,
                        int bins, unsigned parts) {
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

}  // namespace choir::cuda
