#pragma once
// Between spectra and sound: polar coordinates, frames that overlap, powers, and how far two
// spectra are from each other; transforms are products with their matrices (choir/ops/gemm.hpp).
// All is f32 (f64 where the model computes in f64). Spectra of W bins are rows of 2 W numbers: the
// real parts, then the imaginary ones. Local.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// How B sounds [B, R hop] lie in frames [B, R, N]: frame r is samples r hop - lead and the N - 1
/// behind it. Of sound b lengths[b] units of `unit` samples count, whole hops, and the frames that
/// begin a hop within them; nothing else is read, and what does not count is written as 0.
struct SoundFrames {
  std::int64_t hop = 1, lead = 0, unit = 1;
  const std::int32_t* lengths = nullptr;  ///< [B] device memory
};

/// frames[b, r, n] = sound[b, r hop - lead + n].
void split_frames(const Stream& stream, const SoundFrames& how, const TensorView& sound,
                  const TensorView& frames);
/// ... of 16-bit PCM, the bits in a tensor of u16, [B, S] of any S, divided by 32768: beyond
/// audio_lengths[b], [B] in device memory, there is silence.
void split_pcm(const Stream& stream, const SoundFrames& how, const TensorView& pcm,
               const std::int32_t* audio_lengths, const TensorView& frames);
/// sound[b, s] = sum over r of frames[b, r, s - r hop + lead], in the order of r; with `accumulate`
/// added to what is there, also where nothing counts. Either is the other's transpose.
void join_frames(const Stream& stream, const SoundFrames& how, const TensorView& frames,
                 const TensorView& sound, bool accumulate = false);

/// Rows of W numbers x and W phases p as spectra: m cos p and m sin p, m = min(most, exp(gain x +
/// offset)). After the head of Vocos (Siuzdak 2023, arXiv 2306.00814), which has most = 100.
struct Polar {
  double gain = 1, offset = 0, most = 100;
};
/// polar, spectra [N, 2 W].
void polar_forward(const Stream& stream, const Polar& how, const TensorView& polar,
                   const TensorView& spectra);
/// d_polar of d_spectra; where `most` cuts a magnitude it has no gradient.
void polar_backward(const Stream& stream, const Polar& how, const TensorView& polar,
                    const TensorView& d_spectra, const TensorView& d_polar);

/// powers [N, W] = re^2 + im^2 of spectra [N, 2 W].
void power_forward(const Stream& stream, const TensorView& spectra, const TensorView& powers);
void power_backward(const Stream& stream, const TensorView& spectra, const TensorView& d_powers,
                    const TensorView& d_spectra);

/// One of two losses of rows, added to `losses` at rows that count.
struct SpectralTerm {
  TensorView losses;                     ///< [N]; empty: there is no such loss
  double factor = 1;                     ///< of this loss
  double scale = 1;                      ///< 1 / number of rows that count in the global batch
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
};
/// The distance of powers P from powers T, in rows of C, of which each may be several spectra, with
/// p = P + guard and t = T + guard (Arik, Jun, Diamos 2018, arXiv 1808.06719; Yamamoto, Song, Kim
/// 2020, arXiv 1910.11480):
///   logarithms   factor * sum over c of |ln p - ln t|
///   convergence  factor * |sqrt p - sqrt t| / |sqrt t|, lengths of the vectors of a row
/// Rows that do not count (as in l1_loss.hpp) are not looked at. With `write_gradient` P is
/// overwritten by d(scale * sums of losses)/dP, 0 in rows that do not count.
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
