#pragma once
// Normalisation of features per utterance and bin: two passes over the frames that count (mean,
// then squared distances from it), a third that writes. Sums of short blocks of frames in the type
// of the features, those of the blocks in f64; the order is that of the frames of the utterance.
// Floor: 2 element transfers; the second and third pass find an utterance in the cache (1,000
// frames of 80 are 320 KB).
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Added to the standard deviation.
inline constexpr double kStandardDeviationGuard = 1e-5;

namespace cpu {
template <class T>
void normalise_features(const TensorView& x, const std::int32_t* lengths);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void normalise_features(const Stream& stream, const TensorView& x,
                                          const std::int32_t* lengths);
}  // namespace cuda

namespace ref {
/// f64.
void normalise_features(const TensorView& x, const std::int32_t* lengths);
}  // namespace ref

}  // namespace choir
