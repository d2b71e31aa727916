#pragma once
// Log-mel spectra. A transform of N real samples is one of N/2 complex ones (even samples are the
// real parts) by decimation in frequency with factors of 4, and a last pass that takes the two
// halves apart: with E, O the halves of Z[k] and conj(Z[N/2 - k]), X[k] = E + W^k O, X[N/2 - k] =
// conj(E - W^k O). All but dither's normal numbers and the last logarithm is f64, also for features
// in f32: what is rounded before the powers is of the loudest bin's size and falls into the quiet
// bands of its frame. In single precision the emphasis moves a logarithm of speech by up to 5e-5,
// window and product by 2e-5 and 4e-5, the transform by 9e-5, all together by 1.5e-4. Magnitudes do
// not see where a frame begins, so it begins at 0 and its zeros are all behind it. Floor per frame:
// 2 hop bytes read and 4 F written; about 2.5 N log2 N + 4 window FLOP and 2 for every weight of a
// filter: 25k at 512, which limits both devices, not memory.
#include <optional>
#include <string>
#include <vector>

#include "choir/ops/log_mel.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Sizes of transforms there are kernels for, and what bounds their buffers.
inline constexpr std::int64_t kMelTransforms[] = {256, 512, 1024};
inline constexpr int kMostMelTransform = 1024;

namespace ops {
/// An option whose value no features can have. nullopt: all are legal.
struct MelFault {
  const char* option;  ///< as decks call it: "fft", "mel_high"
  std::string value;
  const char* legal;
};
std::optional<MelFault> mel_fault(const MelOptions& options);
}  // namespace ops

namespace cpu {
/// T, of the features: float or double.
template <class T>
void log_mel(const ops::LogMel& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void log_mel(const Stream& stream, const ops::LogMel& args);
}  // namespace cuda

namespace ref {
/// From the definitions, no tables, no fast transform, in extended precision; `out` f64.
void log_mel(const ops::LogMel& args);
/// [mels, fft/2 + 1]
std::vector<double> mel_filters(const ops::MelOptions& options);
}  // namespace ref

}  // namespace choir
