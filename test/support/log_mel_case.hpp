#pragma once
// Log-mel spectra against the f64 reference, on any device.
#include <cmath>
#include <vector>

#include "kernels/features/features.hpp"
#include "test/support/log_mel_golden.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// /// A batch of utterances; the samples behind the end of each are garbage that must not be read.
struct Utterances {
  HostTensor audio, samples, frames, ids;  // [B, S] u16, [B] i32, [B] i32, [B] i64

  Utterances(const std::vector<std::vector<std::int16_t>>& waves, std::int64_t hop,
             std::int64_t padding = 0, std::vector<std::int64_t> sample_ids = {}) {
    std::size_t longest = 1;
    for (const auto& wave : waves) longest = std::max(longest, wave.size());
    const auto batch = static_cast<std::int64_t>(waves.size()),
               width = static_cast<std::int64_t>(longest) + padding;
    audio = HostTensor(DType::u16, {batch, width});
    samples = HostTensor(DType::i32, {batch}), frames = HostTensor(DType::i32, {batch});
    ids = HostTensor(DType::i64, {batch});
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto& wave = waves[static_cast<std::size_t>(b)];
      if (!wave.empty())
        std::memcpy(static_cast<std::int16_t*>(audio.data()) + b * width, wave.data(),
                    wave.size() * sizeof(std::int16_t));
      samples.set(b, static_cast<double>(wave.size()));
      frames.set(b, static_cast<double>(static_cast<std::int64_t>(wave.size()) / hop));
      ids.as<std::int64_t>()[b] =
          sample_ids.empty() ? 1000 + b : sample_ids[static_cast<std::size_t>(b)];
    }
  }
  std::int64_t batch() const { return samples.count(); }
  std::int64_t most_frames() const {
    double most = 0;
    for (std::int64_t b = 0; b < batch(); ++b) most = std::max(most, frames[b]);
    return static_cast<std::int64_t>(most);
  }
};

/// /// A gliding voice with three formants and four syllables per second, over noise at this many
/// dB below it (35: the least noise of the spoken corpora).
inline std::vector<std::int16_t> speech_like(std::int64_t samples, double rate, std::uint64_t seed,
                                             double decibels = 35) {
  const PhiloxKey key = philox_key(seed, "speech");
  std::vector<std::int16_t> wave;
  const double loudness = 107 * std::pow(10, (35 - decibels) / 20);
  double phase = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double t = static_cast<double>(i) / rate, pitch = 140 + 40 * std::sin(2.1 * t + 1);
    phase += 2 * M_PI * pitch / rate;
    double voice = 0;
    for (int h = 1; h * pitch < 0.45 * rate; ++h) {
      double gain = 0;
      for (const double formant : {600.0, 1500.0, 2600.0})
        gain += 1 / (1 + std::pow((h * pitch - formant * (1 + 0.2 * std::sin(3 * t))) / 120, 2));
      voice += gain * std::sin(h * phase);
    }
    const double envelope = std::pow(std::sin(M_PI * 2 * t), 2);
    const double noise = normal_at(key, static_cast<std::uint64_t>(i));
    wave.push_back(static_cast<std::int16_t>(
        std::lround(std::clamp(4000 * envelope * voice + loudness * noise, -32768.0, 32767.0))));
  }
  return wave;
}

/// /// Two tones of half the largest amplitude, each in the middle between two bins of 512 at 16
/// kHz, over noise of this many units in the last place: rounding errors at the size of the tones
/// would show in all other bands.
inline std::vector<std::int16_t> loud_tones(std::int64_t samples, double rate, std::uint64_t seed,
                                            double deviation) {
  const PhiloxKey key = philox_key(seed, "tones");
  std::vector<std::int16_t> wave;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double turns = 2 * M_PI * static_cast<double>(i) / rate;
    wave.push_back(static_cast<std::int16_t>(
        std::lround(16383 * (std::sin(turns * 1015.625) + std::sin(turns * 2984.375)) +
                    deviation * normal_at(key, static_cast<std::uint64_t>(i)))));
  }
  return wave;
}

inline std::vector<std::int16_t> white_noise(std::int64_t samples, std::uint64_t seed,
                                             double deviation) {
  const PhiloxKey key = philox_key(seed, "white");
  std::vector<std::int16_t> wave;
  for (std::int64_t i = 0; i < samples; ++i)
    wave.push_back(static_cast<std::int16_t>(std::lround(
        std::clamp(deviation * normal_at(key, static_cast<std::uint64_t>(i)), -32768.0, 32767.0))));
  return wave;
}

inline ops::LogMel log_mel_arguments(const ops::MelOptions& options, const TensorView& audio,
                                     const TensorView& samples, const TensorView& frames,
                                     const TensorView& ids, const TensorView& tables,
                                     const TensorView& out) {
  return {.options = options,
          .audio = audio,
          .audio_lengths = samples.as<std::int32_t>(),
          .lengths = frames.as<std::int32_t>(),
          .tables = tables,
          .out = out,
          .dither_key = {kGoldenKey[0], kGoldenKey[1]},
          .sample_ids = ids.as<std::int64_t>()};
}

/// Result of the device: [B, frames, F].
inline HostTensor device_log_mel(Device& device, DType dtype, const ops::MelOptions& options,
                                 const Utterances& u, std::int64_t frames = -1) {
  if (frames < 0) frames = u.most_frames();
  HostTensor out(dtype, {u.batch(), frames, options.mels});
  HostTensor tables(DType::u8, {ops::mel_table_bytes(options)});
  const Stream stream(device);
  Mirror mirror(device);
  const TensorView table = mirror.io(tables);
  ops::make_mel_tables(stream, options, table);
  ops::log_mel(stream,
               log_mel_arguments(options, mirror.in(u.audio), mirror.in(u.samples),
                                 mirror.in(u.frames), mirror.in(u.ids), table, mirror.io(out)));
  mirror.fetch();
  EXPECT_TRUE(out.guard_intact());
  return out;
}

inline HostTensor exact_log_mel(const ops::MelOptions& options, const Utterances& u,
                                std::int64_t frames = -1) {
  if (frames < 0) frames = u.most_frames();
  HostTensor out(DType::f64, {u.batch(), frames, options.mels});
  ref::log_mel(log_mel_arguments(options, u.audio, u.samples, u.frames, u.ids, {}, out));
  return out;
}

/// Unit roundoffs of a kernel's parts.
struct MelRoundoffs {
  double spectra;  ///< windowed frames, transforms, powers and their sums
  double noise;    ///< normal numbers of dither
  double result;   ///< argument of the logarithm, and the logarithm
};
inline MelRoundoffs mel_roundoffs(DType dtype) {
  const double u = unit_roundoff(dtype);
  return {0x1p-53, u, u};
}
/// The remaining error if spectra are f64: the logarithm's roundings, of numbers up to 17. The
/// bound for speech is 1e-4.
inline constexpr double kLogMelReached = 0x1p-24 * (1 + 4 * 17);
static_assert(kLogMelReached < 1e-4);

/// How far a computed logarithm may be from the reference, which is rounded but once. With u the
/// unit roundoff, w the window, x the samples, dithered with deviation s, y = x - p x' the
/// emphasised ones, |.| the Euclidean norm over a frame or a spectrum, N the transform's points:
/// - A normal number is r sin a, r = sqrt(-2 ln v), v and its logarithm (2 ulp) rounded: dr <= u (1
///   / r + 3 r), at most sqrt(3 u), which is what is left where v is all but 1. The sine is a
///   polynomial of 6 terms in f32: its first missing term (u), Horner's scheme, coefficients and
///   square (7 u), the angle (2 u) and a product: 11 u. In f64 the angle alone is 2 pi, pi and v
///   rounded, thus less. The product with s adds 2 u: dx <= s (dr + 13 u r) + u |x|.
/// - The product p x', its factor p, the difference, the window and its product are rounded once
///   each: dy <= dx + p dx' + 2 u |p x'| + u |y|, d(w y) <= w dy + 2 u w |y|.
/// - The transform has log2 N levels, the last one of which takes the halves apart. An addition
///   and a product with a rounded root are within 7 u of the vector's norm (Higham, Accuracy and
///   Stability, theorem 24.2: u + 4 sqrt(2) u), and of frequencies 0 ... N / 2 the norm is at most
///   sqrt(N) that of the frame (Parseval): D = sqrt(N) (|d(w y)| + 7 u log2 N |w y|).
/// - The filtered power e = sum f |X|^2 moves by at most 2 sqrt(e max f) D + max f D^2 (Cauchy and
///   Schwarz), and by n + 8 roundings: of n products and sums, squares, weights here and there.
/// - Weights. Edges in extended precision are right to 2^-57 (2^-64 times 47 at 8 kHz: errors of
///   the scale's logarithms times the exponent; 100 at 1 MHz), a weight to 4 times that times
///   centre / width, at most mels + 2, of its height (mels + 1) / min(high, 1000 Hz) or less: twice
///   (here, there) (mels + 2) / 4 units of 2^-53, times powers that add up to N |w y|^2 at most.
/// - Relative to e + 2^-24 this is what the logarithm moves by. It is taken of a rounded number and
///   within 2 ulp itself: u (1 + 4 |ln|).
class LogMelBound {
 public:
  LogMelBound(const MelRoundoffs& u, const ops::MelOptions& options, const Utterances& utterances)
      : u_(u), o_(options), all_(&utterances), filters_(ref::mel_filters(o_)) {}

  /// Prepares frame t of row b.
  void at(std::int64_t b, std::int64_t t) {
    const double u = u_.spectra,
                 last = static_cast<double>(std::max<std::int64_t>(1, o_.window - 1)),
                 points = static_cast<double>(o_.fft);
    double norm = 0, error = 0;
    for (std::int64_t i = 0; i < o_.window; ++i) {
      const std::int64_t k = t * o_.hop - o_.fft / 2 + (o_.fft - o_.window) / 2 + i;
      if (k < 0 || k >= static_cast<std::int64_t>(all_->samples[b])) continue;
      const double w =
          o_.window == 1 ? 1 : std::pow(std::sin(M_PI * static_cast<double>(i) / last), 2);
      const Sample now = sample(b, k), before = k > 0 ? sample(b, k - 1) : Sample{};
      const double product = o_.preemphasis * before.value, y = now.value - product;
      const double moved = now.error + std::fabs(o_.preemphasis) * before.error +
                           2 * u * std::fabs(product) + u * std::fabs(y);
      norm += std::pow(w * y, 2);
      error += std::pow(w * moved + 2 * u * w * std::fabs(y), 2);
    }
    far_ = std::sqrt(points) * (std::sqrt(error) + 7 * u * std::log2(points) * std::sqrt(norm));
    const double high = o_.high > 0 ? o_.high : static_cast<double>(o_.sample_rate) / 2;
    const auto mels = static_cast<double>(o_.mels);
    edges_ = (mels + 2) / 2 * 0x1p-53 * (mels + 1) / std::min(high, 1000.0) * points * norm;
  }
  double operator()(std::int64_t m, double exact) const {
    const std::int64_t bins = o_.fft / 2 + 1;
    double highest = 0, used = 0;
    for (std::int64_t k = 0; k < bins; ++k) {
      const double f = filters_[static_cast<std::size_t>(m * bins + k)];
      highest = std::max(highest, f), used += f > 0;
    }
    const double logarithm = exact * o_.deviation + o_.mean;
    const double e = std::max(0.0, std::exp(logarithm) - o_.guard);
    const double moved = 2 * far_ * std::sqrt(e * highest) + far_ * far_ * highest +
                         (used + 8) * u_.spectra * e + edges_;
    const double relative = moved / (e + o_.guard);
    if (relative >= 1) return INFINITY;
    const double of_power = -std::log1p(-relative) + u_.result;
    const double of_logarithm = of_power + 4 * u_.result * (std::fabs(logarithm) + of_power);
    // The difference, and the product, whose factor is rounded too.
    const bool as_it_is = o_.mean == 0 && o_.deviation == 1;
    const double of_standard =
        as_it_is ? 0 : 4 * u_.result * (std::fabs(logarithm) + std::fabs(o_.mean));
    return (of_logarithm + of_standard) / o_.deviation;
  }

 private:
  struct Sample {
    double value = 0, error = 0;
  };
  Sample sample(std::int64_t b, std::int64_t k) const {
    const auto* audio =
        static_cast<const std::int16_t*>(all_->audio.data()) + b * all_->audio.shape().back();
    Sample x{.value = audio[k] / 32768.0};
    if (o_.dither == 0) return x;
    const auto id = static_cast<std::uint64_t>(all_->ids.as<std::int64_t>()[b]);
    const PhiloxBlock words =
        philox({kGoldenKey[0], kGoldenKey[1]},
               {static_cast<std::uint32_t>(k / 4), 0, static_cast<std::uint32_t>(id),
                static_cast<std::uint32_t>(id >> 32)});
    const std::size_t pair = k % 4 < 2 ? 0 : 2;
    const double u = u_.noise, r = std::sqrt(-2 * std::log((words[pair] + 1.0) * 0x1p-32)),
                 angle = 2 * M_PI * (words[pair + 1] * 0x1p-32);
    x.value += o_.dither * r * (k % 2 == 0 ? std::cos(angle) : std::sin(angle));
    x.error = o_.dither * (std::min(u * (1 / r + 3 * r), std::sqrt(3 * u)) + 13 * u * r) +
              u_.spectra * std::fabs(x.value);
    return x;
  }

  MelRoundoffs u_;
  ops::MelOptions o_;
  const Utterances* all_;
  std::vector<double> filters_;
  double far_ = 0, edges_ = 0;  // D; the error that edges of filters cause in e
};

/// Compares with the reference within the bound, and within `absolute` if that is smaller.
inline HostTensor check_log_mel(Device& device, DType dtype, const ops::MelOptions& options,
                                const Utterances& u, double absolute = INFINITY,
                                std::int64_t frames = -1) {
  const HostTensor out = device_log_mel(device, dtype, options, u, frames),
                   exact = exact_log_mel(options, u, frames);
  LogMelBound bound(mel_roundoffs(dtype), options, u);
  const std::int64_t all = out.shape()[1], mels = options.mels;
  for (std::int64_t b = 0; b < u.batch(); ++b)
    for (std::int64_t t = 0; t < all; ++t) {
      if (static_cast<double>(t) < u.frames[b]) bound.at(b, t);
      for (std::int64_t m = 0; m < mels; ++m) {
        const std::int64_t i = (b * all + t) * mels + m;
        const double allowed = static_cast<double>(t) < u.frames[b]
                                   ? std::min(absolute, bound(m, exact[i]))
                                   : 0.0;  // zeros
        if (!(std::fabs(out[i] - exact[i]) <= allowed)) {
          ADD_FAILURE() << "row " << b << " frame " << t << " mel " << m << ": " << out[i]
                        << " instead of " << exact[i] << ", allowed error " << allowed;
          return out;
        }
      }
    }
  return out;
}

inline void expect_golden(const HostTensor& out, const std::vector<Golden>& golden,
                          double tolerance) {
  const std::int64_t mels = out.shape().back();
  for (const Golden& g : golden)
    EXPECT_NEAR(out[g.row * mels + g.column], g.value, tolerance)
        << "frame " << g.row << " mel " << g.column;
}
template <std::size_t kCount>
std::vector<Golden> all_of(const Golden (&golden)[kCount]) {
  return {golden, golden + kCount};
}

inline ops::MelOptions at_8_khz() {
  return {.sample_rate = 8000, .window = 200, .hop = 80, .fft = 256, .mels = 64, .high = 4000};
}
inline ops::MelOptions wide_frames() {
  return {.window = 1000, .hop = 320, .fft = 1024, .mels = 128, .high = 7000};
}

}  // namespace choir::test
