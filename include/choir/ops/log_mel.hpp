#pragma once
// Speech features: log-mel spectra of 16-bit audio as in the FastConformer recipes, then normalised
// per utterance and augmented. Features are f32 (f64 if the model computes in f64); spectra are f64
// in both cases, on every device.
#include <cstdint>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

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
/// (kernels/log_mel/mel_tables.hpp), in f64.
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
