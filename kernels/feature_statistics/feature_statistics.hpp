#pragma once
// Normalisation of features per utterance and bin: two passes over the valid frames (mean, then
// squared distances from it) and a third that writes. Short blocks of frames are summed in the type
// of the features, the sums of the blocks in f64, in the order of the frames of the utterance.
// Floor: 2 element transfers; the second and third pass read an utterance from the cache (1,000
// frames of 80 are 320 KB).
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Constant added to the standard deviation.
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
