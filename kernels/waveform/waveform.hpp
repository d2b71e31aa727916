#pragma once
// Spectra and sound. Floors in transfers of 4 bytes: a frame's sample 2 (the sound itself is read
// once from memory, then from caches), a joined sample 1 + frame / hop, a bin of polar coordinates
// 4 forward and 6 backward, of powers 3 and 5, of the loss 3. All of them are small compared with
// the matrix products of the transforms, of 4 N FLOPs per bin.
#include "choir/ops/waveform.hpp"
#include "kernels/cuda_kernel.hpp"

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
