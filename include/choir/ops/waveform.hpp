#pragma once
// Operations between spectra and sound: polar coordinates, overlapping frames, powers, and
// distances of spectra. The transforms are products with their matrices (choir/ops/gemm.hpp). All
// is f32 (f64 if the model computes in f64). Spectra of W bins are rows of 2 W numbers: the real
// parts, then the imaginary parts. Local.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

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
