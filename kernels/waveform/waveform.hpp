#pragma once
// Operations between spectra and sound: polar coordinates, overlapping frames, powers, and
// distances of spectra. The transforms are products with their matrices (kernels/gemm/gemm.hpp).
// All is f32 (f64 if the model computes in f64). Spectra of W bins are rows of 2 W numbers: the
// real parts, then the imaginary parts. Local. Floors in transfers of 4 bytes: a frame's sample 2
// (the sound itself is read once from memory, then from caches), a joined sample 1 + frame / hop, a
// bin of polar coordinates 4 forward and 6 backward, of powers 3 and 5, of the loss 3. All of them
// are small compared with the matrix products of the transforms, of 4 N FLOPs per bin.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// The positions of frames [B, R, N] in B sounds [B, R hop]: frame r covers the N samples from r
/// hop - lead on. Of sound b, lengths[b] units of `unit` samples are valid (whole hops), and so are
/// the frames that begin a hop within them. Nothing else is read, and invalid outputs are written
/// as 0.
struct SoundFrames {
  std::int64_t hop = 1, lead = 0, unit = 1;
  const std::int32_t* lengths = nullptr;  ///< [B] device memory
};

/// frames[b, r, n] = sound[b, r hop - lead + n].
void split_frames(const Stream& stream, const SoundFrames& how, const TensorView& sound,
                  const TensorView& frames);
/// The same for 16-bit PCM [B, S] with any S, stored as bits in a tensor of u16 and divided by
/// 32768. Samples beyond audio_lengths[b], [B] in device memory, are silence.
void split_pcm(const Stream& stream, const SoundFrames& how, const TensorView& pcm,
               const std::int32_t* audio_lengths, const TensorView& frames);
/// sound[b, s] = sum over r of frames[b, r, s - r hop + lead], in the order of r; with `accumulate`
/// the sum is added to the existing sound, also in the invalid part. The two operations are
/// transposes of each other.
void join_frames(const Stream& stream, const SoundFrames& how, const TensorView& frames,
                 const TensorView& sound, bool accumulate = false);

/// Converts rows of W numbers x and W phases p to spectra: m cos p and m sin p, m = min(most,
/// exp(gain x + offset)). This is the head of Vocos (Siuzdak 2023, arXiv 2306.00814), where most =
/// 100.
struct Polar {
  double gain = 1, offset = 0, most = 100;
};
/// polar and spectra are [N, 2 W].
void polar_forward(const Stream& stream, const Polar& how, const TensorView& polar,
                   const TensorView& spectra);
/// Computes d_polar from d_spectra; a magnitude that is clamped to `most` has no gradient.
void polar_backward(const Stream& stream, const Polar& how, const TensorView& polar,
                    const TensorView& d_spectra, const TensorView& d_polar);

/// powers [N, W] = re^2 + im^2 of spectra [N, 2 W].
void power_forward(const Stream& stream, const TensorView& spectra, const TensorView& powers);
void power_backward(const Stream& stream, const TensorView& spectra, const TensorView& d_powers,
                    const TensorView& d_spectra);

/// One of two losses per row, added to `losses` at valid rows.
struct SpectralTerm {
  TensorView losses;                     ///< [N]; empty: this loss is not used
  double factor = 1;                     ///< weight of this loss
  double scale = 1;                      ///< 1 / number of valid rows in the global batch
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
};
/// The distance between powers P and powers T, in rows of C, each of which may contain several
/// spectra, with p = P + guard and t = T + guard (Arik, Jun, Diamos 2018, arXiv 1808.06719;
/// Yamamoto, Song, Kim 2020, arXiv 1910.11480):
///   logarithms   factor * sum over c of |ln p - ln t|
///   convergence  factor * |sqrt p - sqrt t| / |sqrt t|, lengths of the vectors of a row
/// Invalid rows (as in l1_loss.hpp) are not read. With `write_gradient` P is overwritten by d(scale
/// * sums of losses)/dP, 0 in invalid rows.
struct SpectralLoss {
  TensorView predicted, target;           ///< [N, C]
  const std::int32_t* lengths = nullptr;  ///< [N / tokens] device memory
  std::int64_t tokens = 1;
  double guard = 1e-5;
  SpectralTerm logarithms, convergence;
  bool write_gradient = true;
};
void spectral_loss(const Stream& stream, const SpectralLoss& args);

}  // namespace choir::ops

namespace choir {

/// SoundFrames with the extents of its tensors; consecutive sounds are `width` samples apart.
struct FramesOf {
  std::int64_t sounds, rows, frame, width;
  std::int64_t hop, lead, unit;
  const std::int32_t* lengths;
  const std::int32_t* audio_lengths;  ///< for PCM; otherwise nullptr
};

namespace cpu {
template <class T>
void split_frames(const FramesOf& of, const T* sound, T* frames);
template <class T>
void split_pcm(const FramesOf& of, const std::int16_t* pcm, T* frames);
template <class T>
void join_frames(const FramesOf& of, const T* frames, T* sound, bool accumulate);
template <class T>
void polar_forward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const T* polar,
                   T* spectra);
template <class T>
void polar_backward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const T* polar,
                    const T* d_spectra, T* d_polar);
template <class T>
void power_forward(std::int64_t rows, std::int64_t bins, const T* spectra, T* powers);
template <class T>
void power_backward(std::int64_t rows, std::int64_t bins, const T* spectra, const T* d_powers,
                    T* d_spectra);
template <class T>
void spectral_loss(const ops::SpectralLoss& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void split_frames(const Stream& stream, const FramesOf& of, const float* sound,
                                    float* frames);
CHOIR_CUDA_KERNEL void split_pcm(const Stream& stream, const FramesOf& of, const std::int16_t* pcm,
                                 float* frames);
CHOIR_CUDA_KERNEL void join_frames(const Stream& stream, const FramesOf& of, const float* frames,
                                   float* sound, bool accumulate);
CHOIR_CUDA_KERNEL void polar_forward(const Stream& stream, const ops::Polar& how, std::int64_t rows,
                                     std::int64_t bins, const float* polar, float* spectra);
CHOIR_CUDA_KERNEL void polar_backward(const Stream& stream, const ops::Polar& how,
                                      std::int64_t rows, std::int64_t bins, const float* polar,
                                      const float* d_spectra, float* d_polar);
CHOIR_CUDA_KERNEL void power_forward(const Stream& stream, std::int64_t rows, std::int64_t bins,
                                     const float* spectra, float* powers);
CHOIR_CUDA_KERNEL void power_backward(const Stream& stream, std::int64_t rows, std::int64_t bins,
                                      const float* spectra, const float* d_powers,
                                      float* d_spectra);
CHOIR_CUDA_KERNEL void spectral_loss(const Stream& stream, const ops::SpectralLoss& args);
}  // namespace cuda

namespace ref {
/// Computed from the definitions in f64; sound is [B, R hop] or, with audio_lengths, PCM.
void split_frames(const FramesOf& of, const TensorView& sound, double* frames);
void join_frames(const FramesOf& of, const double* frames, double* sound, bool accumulate);
void polar_forward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const double* polar,
                   double* spectra);
void polar_backward(const ops::Polar& how, std::int64_t rows, std::int64_t bins,
                    const double* polar, const double* d_spectra, double* d_polar);
void power_forward(std::int64_t rows, std::int64_t bins, const double* spectra, double* powers);
void power_backward(std::int64_t rows, std::int64_t bins, const double* spectra,
                    const double* d_powers, double* d_spectra);
void spectral_loss(const ops::SpectralLoss& args);
}  // namespace ref

}  // namespace choir
