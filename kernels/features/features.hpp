#pragma once
// Speech features: log-mel spectra of 16-bit audio as in the FastConformer recipes, then normalised
// per utterance and augmented. Features are f32 (f64 if the model computes in f64); spectra are f64
// in both cases, on every device. The log-mel kernels use tables: the window, the roots of unity of
// the transform, and the filters as ranges of bins. A triangle of the Slaney scale is zero except
// for a few neighbouring bins, and every bin is in at most two of them, so all ranges together have
// at most fft + 2 weights.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/core/host_device.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

struct MelOptions {
  std::int64_t sample_rate = 16000;
  std::int64_t window = 400;  ///< samples, symmetric Hann, centred in fft; at most fft
  std::int64_t hop = 160;     ///< samples, at most fft
  std::int64_t fft = 512;     ///< 256, 512 or 1024
  std::int64_t mels = 80;     ///< F; Slaney scale and area norm, from 0 Hz to `high`
  double high = 0;            ///< Hz; 0: sample_rate / 2
  double preemphasis = 0.97;
  double dither = 0;               ///< standard deviation for audio in [-1, 1); training only
  double guard = 0x1p-24;          ///< added to powers before the logarithm
  double mean = 0, deviation = 1;  ///< subtracted from logarithms; divisor
};

/// The number of valid frames of `samples` samples: samples / hop.
constexpr std::int64_t mel_frames(const MelOptions& options, std::int64_t samples) {
  return samples / options.hop;
}

/// out[b, t, m] = (ln(guard + sum over k of filter[m, k] |X[t, k]|^2) - mean) / deviation, where X
/// is the transform of the frame centred at sample t hop (zeros outside the utterance); 0 at frames
/// >= lengths[b]. The input is audio / 32768, plus dither(sample id, sample index) n(0,1), then
/// y[0] = x[0], y[n] = x[n] - p x[n - 1]. Normal numbers 4i ... 4i + 3 of a sample are those of Box
/// and Muller from the words of philox(key, {i, 0, sample id}): sqrt(-2 ln((w0 + 1) / 2^32)) times
/// cosine and sine of 2 pi w1 / 2^32, then the same with w2, w3. A frame depends on its utterance
/// alone, bit for bit: padding, batch and threads do not matter.
struct LogMel {
  MelOptions options;
  TensorView audio;                             ///< [B, S] i16 PCM: the bits, in a tensor of u16
  const std::int32_t* audio_lengths = nullptr;  ///< [B] device memory
  const std::int32_t* lengths = nullptr;        ///< [B] device memory, valid frames
  TensorView tables;                            ///< [mel_table_bytes()] u8, on the device
  TensorView out;                               ///< [B, T, F] f32 or f64
  PhiloxKey dither_key{};
  const std::int64_t* sample_ids = nullptr;  ///< [B] device memory; needed with dither
};

/// Throws DeckError for invalid options: a size out of its range, or `high` above half the rate.
void check(const MelOptions& options);
/// Size in bytes of the tables: window, roots of unity and filters
/// (kernels/features/features.hpp), in f64.
std::int64_t mel_table_bytes(const MelOptions& options);
/// Computes the tables on the host, copies them and waits for the copy, so this is not part of a
/// step. `tables` is [mel_table_bytes()] u8 on the device.
void make_mel_tables(const Stream& stream, const MelOptions& options, const TensorView& tables);
void log_mel(const Stream& stream, const LogMel& args);

/// In place: (x - mean) / (std + 1e-5) per utterance and mel bin over valid frames, with unbiased
/// std (of one frame: 0); 0 at the others. x [B, T, F].
void normalise_features(const Stream& stream, const TensorView& x, const std::int32_t* lengths);

/// SpecAugment (Park et al. 2019): masks of time, then of frequency, set x [B, T, F] to 0 in place.
/// Mask i of row b is derived from the words of philox(key, {i, 0 (time) or 1 (frequency), sample
/// id}): time: width = floor(u0 * min(T_b, time_width < 1 ? time_width T_b : time_width)), start =
/// floor(u1 * (T_b - width)), T_b = lengths[b], in f64 on every device; frequency: width = floor(u0
/// * frequency_width), start = floor(u1 * (F - width)).
struct SpecAugment {
  std::int64_t time_masks = 10, frequency_masks = 2;
  double time_width = 0.05;           ///< below 1: fraction of the utterance; otherwise frames
  std::int64_t frequency_width = 27;  ///< bins, at most F
};
void spec_augment(const Stream& stream, const SpecAugment& options, const TensorView& x,
                  const std::int32_t* lengths, const std::int64_t* sample_ids, PhiloxKey key);

}  // namespace choir::ops

namespace choir {

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

// Masks of SpecAugment. Their positions are computed with the same double arithmetic on every
// device. No product is followed by an addition that a compiler could fuse with it, so the bits are
// the same too. Floor: the masked elements are written once, a tenth to a third of the features.

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
/// f64, element by element, by the definition in kernels/features/features.hpp.
void spec_augment(const ops::SpecAugment& options, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key);
}  // namespace ref

// Normalisation of features per utterance and bin: two passes over the valid frames (mean, then
// squared distances from it) and a third that writes. Short blocks of frames are summed in the type
// of the features, the sums of the blocks in f64, in the order of the frames of the utterance.
// Floor: 2 element transfers; the second and third pass read an utterance from the cache (1,000
// frames of 80 are 320 KB).

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

/// Offsets of the parts in the tables, in units of f64 numbers.
struct MelTableLayout {
  std::int64_t window;   ///< samples of the window, padded with zeros to a multiple of 16; begins
                         ///< at 0
  std::int64_t roots;    ///< real and imaginary part of exp(-2 pi i k / fft), k = 0 ... fft - 1
  std::int64_t bands;    ///< per mel: first bin, number of bins, offset of its weights in `weights`
  std::int64_t weights;  ///< [fft + 2]
  std::int64_t size;
};

inline MelTableLayout mel_table_layout(const ops::MelOptions& options) {
  const std::int64_t window = (options.window + 15) / 16 * 16, roots = window;
  const std::int64_t bands = roots + 2 * options.fft, weights = bands + 3 * options.mels;
  return {window, roots, bands, weights, weights + options.fft + 2};
}

/// Frame t begins at sample t hop - mel_lead(): the window is centred in the transform, which is
/// centred at t hop.
inline std::int64_t mel_lead(const ops::MelOptions& options) {
  return options.fft / 2 - (options.fft - options.window) / 2;
}

/// Computes the tables. Each number is within half a unit of f64 of the exact one; weights of
/// filters within (mels + 2) / 4 units of the filter's height more.
std::vector<double> mel_tables(const ops::MelOptions& options);

/// Position of frequency k after an in-place transform of `count` = 4^n or 2 4^n points by
/// decimation in frequency, factors of 4 first.
CHOIR_HOST_DEVICE inline int spectrum_position(int k, int count) {
  int position = 0;
  for (; count >= 4; count /= 4, k /= 4) position += k % 4 * (count / 4);
  return count == 2 ? position + k % 2 : position;
}

}  // namespace choir
