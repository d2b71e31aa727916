#pragma once
// Log-mel spectra against the f64 reference, on any device.
#include <cmath>
#include <vector>

#include "choir/ops/log_mel.hpp"
#include "kernels/log_mel.hpp"
#include "test/support/log_mel_golden.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// A batch of utterances; what lies behind the end of each is rubbish that nobody may read.
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

/// A voice that glides, with three formants and four syllables a second, over noise 35 dB below
/// (the least noise of the spoken corpora).
inline std::vector<std::int16_t> speech_like(std::int64_t samples, double rate,
                                             std::uint64_t seed) {
  const PhiloxKey key = philox_key(seed, "speech");
  std::vector<std::int16_t> wave;
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
        std::lround(std::clamp(4000 * envelope * voice + 107 * noise, -32768.0, 32767.0))));
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

/// What the device computes: [B, frames, F].
inline HostTensor device_log_mel(Device& device, DType dtype, const ops::MelOptions& options,
                                 const Utterances& u, std::int64_t frames = -1) {
  if (frames < 0) frames = u.most_frames();
  HostTensor out(dtype, {u.batch(), frames, options.mels});
  HostTensor tables(dtype, {ops::mel_table_size(options)});
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

/// How far a computed logarithm may be from the exact one. With u the unit roundoff, w the window
/// and y = x - p x' the emphasised samples:
/// - Samples: the product p x', its factor p, the difference, the window and its product are
/// rounded
///   once each: |d(w y)| <= 3 u |w y| + 2 u |w x'|. Dither adds the errors of its logarithm, root
///   and sine, whose mean square is below (17 u)^2 (1 / r^2 is large where the radius r is small,
///   but seldom); twice that for x and x'.
/// - A transform of log2 N steps: the error's norm is at most log2 N (4 + sqrt 2 + ...) u < 7 log2
/// N
///   u of the result's norm (Higham, Accuracy and Stability, theorem 24.2). It spreads evenly over
///   the N frequencies, whose mean power is the frame's: D = (7 log2 N + 5) u (|w y| + |w x'|).
/// - The filtered power e = sum f |X|^2 moves by 2 D sum f |X| + D^2 sum f <= 2 D sqrt(e s) + D^2
/// s,
///   s = sum f (Cauchy and Schwarz); its own roundings, n + 6 of them for n bins, by (n + 6) u e.
/// - In f64 the reference rounds as coarsely: its plain sums of N terms by N u of the frame's norm
///   times sqrt(N), its filters, made by another formula of the edges, by 2^11 u e and (a weight
///   at an edge that is nearly none) 2^11 u of the largest power, at most N norm^2, times s.
/// - Relative to e + 2^-24 this is what the logarithm moves by; it is within 2 ulp itself.
class LogMelBound {
 public:
  LogMelBound(DType dtype, const ops::MelOptions& options, const Utterances& utterances)
      : u_(unit_roundoff(dtype)), o_(options), all_(&utterances), filters_(ref::mel_filters(o_)) {}

  /// Prepares frame t of row b.
  void at(std::int64_t b, std::int64_t t) {
    const auto* audio =
        static_cast<const std::int16_t*>(all_->audio.data()) + b * all_->audio.shape().back();
    const auto n = static_cast<std::int64_t>(all_->samples[b]);
    double emphasised = 0, before = 0, window = 0;
    for (std::int64_t i = 0; i < o_.window; ++i) {
      const std::int64_t k = t * o_.hop - o_.fft / 2 + (o_.fft - o_.window) / 2 + i;
      if (k < 0 || k >= n) continue;
      const double w =
          std::pow(std::sin(M_PI * static_cast<double>(i) /
                            static_cast<double>(std::max<std::int64_t>(1, o_.window - 1))),
                   2);
      const double x1 = k > 0 ? audio[k - 1] / 32768.0 : 0;
      const double y = audio[k] / 32768.0 - o_.preemphasis * x1;
      emphasised += std::pow(w * y, 2), before += std::pow(w * x1, 2), window += w * w;
    }
    const double dither = o_.dither * std::sqrt(window);
    far_ = (7 * std::log2(static_cast<double>(o_.fft)) + 5) * u_ *
               (std::sqrt(emphasised) + std::sqrt(before) + 2 * dither) +
           2 * 17 * u_ * dither;
    largest_ = 0;
    if (u_ > 0x1p-50) return;
    const auto n_points = static_cast<double>(o_.fft);
    const double norm = std::sqrt(emphasised) + std::sqrt(before) + 2 * dither;
    far_ += n_points * std::sqrt(n_points) * u_ * norm;
    largest_ = n_points * norm * norm;
  }
  double operator()(std::int64_t m, double exact) const {
    const std::int64_t bins = o_.fft / 2 + 1;
    double sum = 0, used = 0;
    for (std::int64_t k = 0; k < bins; ++k) {
      const double f = filters_[static_cast<std::size_t>(m * bins + k)];
      sum += f, used += f > 0;
    }
    const double e = std::max(0.0, std::exp(exact) - kMelGuard);
    const double moved = 2 * far_ * std::sqrt(e * sum) + far_ * far_ * sum + (used + 6) * u_ * e +
                         (largest_ > 0 ? 0x1p11 * u_ * (e + largest_ * sum) : 0);
    const double relative = moved / (e + kMelGuard);
    return (relative < 1 ? -std::log1p(-relative) : INFINITY) +
           4 * u_ * std::max(1.0, std::fabs(exact));
  }

 private:
  double u_;
  ops::MelOptions o_;
  const Utterances* all_;
  std::vector<double> filters_;
  double far_ = 0, largest_ = 0;  // D; largest power, for f64
};

/// Against the reference within the bound, and within `absolute` where that is smaller.
inline HostTensor check_log_mel(Device& device, DType dtype, const ops::MelOptions& options,
                                const Utterances& u, double absolute = INFINITY,
                                std::int64_t frames = -1) {
  const HostTensor out = device_log_mel(device, dtype, options, u, frames),
                   exact = exact_log_mel(options, u, frames);
  LogMelBound bound(dtype, options, u);
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
