#pragma once
// Log-mel spectra. A transform of N real samples is one of N/2 complex ones (even samples are the
// real parts) by decimation in frequency with factors of 4, and a last pass that separates the two
// halves: with E, O the halves of Z[k] and conj(Z[N/2 - k]), X[k] = E + W^k O, X[N/2 - k] = conj(E
// - W^k O). Everything but dither's normal numbers and the last logarithm is f64, even for features
// in f32, because rounding errors before the powers are relative to the loudest bin and would fall
// into the quiet bands of the frame. In single precision the emphasis changes a logarithm of speech
// by up to 5e-5, window and product by 2e-5 and 4e-5, the transform by 9e-5, all together by
// 1.5e-4. Magnitudes do not depend on the offset of a frame, so it begins at 0 and all its zeros
// follow it. Floor per frame: 2 hop bytes read and 4 F written; about 2.5 N log2 N + 4 window FLOP
// and 2 for every weight of a filter: 25k at 512, which limits both devices, not memory.
#include <optional>
#include <string>
#include <vector>

#include "choir/ops/log_mel.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Transform sizes that have kernels, and the maximum for their buffers.
inline constexpr std::int64_t kMelTransforms[] = {256, 512, 1024};
inline constexpr int kMostMelTransform = 1024;

namespace ops {
/// The first invalid option; nullopt if all are valid.
struct MelFault {
  const char* option;  ///< name of the option in decks: "fft", "mel_high"
  std::string value;
  const char* legal;
};
std::optional<MelFault> mel_fault(const MelOptions& options);
}  // namespace ops

namespace cpu {
/// T is the type of the features: float or double.
template <class T>
void log_mel(const ops::LogMel& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void log_mel(const Stream& stream, const ops::LogMel& args);
}  // namespace cuda

namespace ref {
/// Computed from the definitions in extended precision, without tables or fast transforms; `out` is
/// f64.
void log_mel(const ops::LogMel& args);
/// [mels, fft/2 + 1]
std::vector<double> mel_filters(const ops::MelOptions& options);
}  // namespace ref

}  // namespace choir
