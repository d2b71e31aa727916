#pragma once
// Masks of SpecAugment. Their positions are computed with the same double arithmetic on every
// device. No product is followed by an addition that a compiler could fuse with it, so the bits are
// the same too. Floor: the masked elements are written once, a tenth to a third of the features.
#include <cmath>

#include "choir/ops/log_mel.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Maximum number of masks per row, so that a block of threads has room for them.
inline constexpr std::int64_t kMostMasks = 256;

/// Masked frames or bins [start, start + width).
struct Mask {
  std::int64_t start, width;
};

/// Mask i along an extent, at most `widest` wide (widest <= extent).
CHOIR_HOST_DEVICE inline Mask mask_at(PhiloxKey key, std::uint32_t i, std::uint32_t kind,
                                      std::int64_t sample, double widest, std::int64_t extent) {
  const auto id = static_cast<std::uint64_t>(sample);
  const PhiloxBlock words =
      philox(key, {i, kind, static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)});
  const auto width = static_cast<std::int64_t>(uniform01(words[0]) * widest);  // floor, since the
                                                                               // product is >= 0
  const auto rest = static_cast<double>(extent - width);
  return {static_cast<std::int64_t>(uniform01(words[1]) * rest), width};
}

CHOIR_HOST_DEVICE inline Mask time_mask(const ops::SpecAugment& options, PhiloxKey key,
                                        std::uint32_t i, std::int64_t sample, std::int64_t frames) {
  const auto all = static_cast<double>(frames);
  const double wanted = options.time_width < 1 ? options.time_width * all : options.time_width;
  return mask_at(key, i, 0, sample, wanted < all ? wanted : all, frames);
}

CHOIR_HOST_DEVICE inline Mask frequency_mask(const ops::SpecAugment& options, PhiloxKey key,
                                             std::uint32_t i, std::int64_t sample,
                                             std::int64_t bins) {
  return mask_at(key, i, 1, sample, static_cast<double>(options.frequency_width), bins);
}

namespace cpu {
template <class T>
void spec_augment(const ops::SpecAugment& options, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void spec_augment(const Stream& stream, const ops::SpecAugment& options,
                                    const TensorView& x, const std::int32_t* lengths,
                                    const std::int64_t* sample_ids, PhiloxKey key);
}  // namespace cuda

namespace ref {
/// f64, element by element, by the definition in choir/ops/log_mel.hpp.
void spec_augment(const ops::SpecAugment& options, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key);
}  // namespace ref

}  // namespace choir
