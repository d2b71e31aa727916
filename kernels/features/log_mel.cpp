// Log-mel spectra: CPU twin and reference in extended precision.

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/features/dither.hpp"
#include "kernels/features/features.hpp"
#include "kernels/features/frame_lanes.hpp"

namespace choir::cpu {
namespace {

/// One utterance.
struct Wave {
  const std::int16_t* audio;
  std::int64_t samples;
  std::uint64_t id;
};

/// Computes two normal numbers from every two words.
Floats normals(Words words) {
  constexpr auto kSine = lanes_of<Words>([](int i) { return i % 2 == 1 ? 0x40000000u : 0u; });
  const Words radius = shuffled(words, words, [](int i) { return i & ~1; });
  // sin x = cos(x - a quarter turn)
  const Words angle = shuffled(words, words, [](int i) { return i | 1; }) - kSine;
  const Words distance = angle < 0x80000000u ? angle : 0u - angle;  // complement() of vectors
  const Floats turns = __builtin_convertvector((Ints)(0x40000000u - distance), Floats) * 0x1p-32f;
  const Floats u = __builtin_convertvector(radius, Floats) * 0x1p-32f + 0x1p-32f;
  return sqrt(-2.0f * log(u)) * sine_of_turns(turns);
}

/// Normal numbers of samples [first, first + kWords), first a multiple of 4.
void normals_at(PhiloxKey key, std::uint64_t id, std::int64_t first, float* out) {
  alignas(64) std::uint32_t words[kWords];
  random_words(key, static_cast<std::uint32_t>(first / 4), 0, id, words);
  for (int i = 0; i < kWords; i += kLanes<float>) {
    Words w;
    std::memcpy(&w, words + i, sizeof w);
    store(out + i, normals(w));
  }
}
void normals_at(PhiloxKey key, std::uint64_t id, std::int64_t first, double* out) {
  for (int i = 0; i < kWords; i += 2) {
    const PhiloxBlock w = dither_words(key, (first + i) / 4, id);
    const std::size_t pair = i % 4 == 0 ? 0 : 2;
    const double radius = std::sqrt(-2 * std::log((w[pair] + 1.0) * 0x1p-32));
    const double angle = 2 * M_PI * uniform01(w[pair + 1]);
    out[i] = radius * std::cos(angle), out[i + 1] = radius * std::sin(angle);
  }
}

/// Stores the first `count` lanes.
void store_rounded(float* to, Doubles row, std::int64_t count) {
  using Row = float __attribute__((vector_size(kVectorBytes / 2)));
  const Row rounded = __builtin_convertvector(row, Row);
  std::memcpy(to, &rounded, static_cast<std::size_t>(count) * sizeof(float));
}
void store_rounded(double* to, Doubles row, std::int64_t count) {
  store_part(to, row, count);
}

/// The data shared by threads, and the processing of kFrames frames at a time. T is the type of the
/// features.
template <class T, int kFft>
class FrameGroups {
 public:
  explicit FrameGroups(const ops::LogMel& args)
      : args_(&args),
        at_(mel_table_layout(args.options)),
        tables_(static_cast<const double*>(args.tables.data)) {
    for (int k = 0; k <= kHalf; ++k) slots_[k] = power_slot<kHalf>(k);
  }

  static constexpr int kFrames = kLanes<double>;

  /// Computes frames [first, first + kFrames) of row b, as far as they exist.
  void run(std::int64_t b, std::int64_t first) const {
    const std::int64_t frames = args_->out.shape[1], mels = args_->options.mels;
    T* out = args_->out.as<T>() + (b * frames + first) * mels;
    const std::int64_t here = std::min<std::int64_t>(kFrames, frames - first);
    const std::int64_t valid = std::clamp<std::int64_t>(args_->lengths[b] - first, 0, here);
    std::fill(out + valid * mels, out + here * mels, T(0));
    if (valid == 0) return;
    alignas(64) double samples[kFrames * kFft];
    alignas(64) Doubles lanes[kFft + 1];
    const Wave wave{
        static_cast<const std::int16_t*>(args_->audio.data) + b * args_->audio.shape.back(),
        args_->audio_lengths[b],
        args_->options.dither > 0 ? static_cast<std::uint64_t>(args_->sample_ids[b]) : 0};
    const ops::MelOptions& o = args_->options;
    prepare(wave, first * o.hop - mel_lead(o), (kFrames - 1) * o.hop + at_.window, samples,
            reinterpret_cast<double*>(lanes));
    spread(samples, lanes);
    transform<double, kHalf>(lanes, tables_ + at_.roots);
    power<double, kHalf>(lanes, tables_ + at_.roots, slots_);
    bands(lanes, out, valid);
  }

 private:
  static constexpr int kHalf = kFft / 2;

  /// y[i] = emphasised sample first + i; `x` has room for count + 1.
  void prepare(const Wave& wave, std::int64_t first, std::int64_t count, double* y,
               double* x) const {
    const std::int64_t low = std::max<std::int64_t>(first, 0);
    const std::int64_t high = std::max(low, std::min(first + count, wave.samples)), n = high - low;
    std::fill(y, y + (low - first), 0.0);
    std::fill(y + (high - first), y + count, 0.0);
    x[0] = 0;
    for (std::int64_t i = low > 0 ? -1 : 0; i < n; ++i) x[i + 1] = wave.audio[low + i] * 0x1p-15;
    if (args_->options.dither > 0) add_dither(wave, low, n, x);
    const double p = args_->options.preemphasis;
    double* to = y + (low - first);
    for (std::int64_t i = 0; i < n; ++i) to[i] = x[i + 1] - p * x[i];
  }

  /// x[0] is sample low - 1.
  void add_dither(const Wave& wave, std::int64_t low, std::int64_t n, double* x) const {
    alignas(64) T noise[kWords];
    const double by = args_->options.dither;
    const std::int64_t begin = std::max<std::int64_t>(low - 1, 0), end = low + n;
    for (std::int64_t at = begin & ~std::int64_t{3}; at < end; at += kWords) {
      normals_at(args_->dither_key, wave.id, at, noise);
      const std::int64_t from = std::max(at, begin), to = std::min(at + kWords, end);
      for (std::int64_t i = from; i < to; ++i)
        x[i - low + 1] += by * static_cast<double>(noise[i - at]);
    }
  }

  /// Spreads the windowed frames over the lanes, one per lane.
  void spread(const double* samples, Doubles* lanes) const {
    for (std::int64_t n = 0; n < at_.window; n += kFrames) {
      const Doubles window = load(tables_ + n);
      for (int i = 0; i < kFrames; ++i)
        lanes[n + i] = load(samples + i * args_->options.hop + n) * window;
      transpose_square(lanes + n);
    }
    std::fill(lanes + at_.window, lanes + kFft, Doubles{});
  }

  /// Writes ln of the filtered powers to rows [0, valid) of out; they are rounded to T before the
  /// logarithm.
  void bands(const Doubles* powers, T* out, std::int64_t valid) const {
    const std::int64_t mels = args_->options.mels;
    for (std::int64_t first = 0; first < mels; first += kFrames) {
      const std::int64_t here = std::min<std::int64_t>(kFrames, mels - first);
      Doubles rows[kFrames] = {};
      for (std::int64_t m = 0; m < here; ++m) {
        const double* band = tables_ + at_.bands + 3 * (first + m);
        const int* slot = slots_ + static_cast<int>(band[0]);
        const double* weights = tables_ + at_.weights + static_cast<int>(band[2]);
        const int bins = static_cast<int>(band[1]);
        Doubles sum{};
        for (int k = 0; k < bins; ++k) sum += weights[k] * powers[slot[k]];
        rows[m] = sum * 0.25 + args_->options.guard;
      }
      transpose_square(rows);
      for (std::int64_t t = 0; t < valid; ++t) store_rounded(out + t * mels + first, rows[t], here);
    }
    const auto mean = static_cast<T>(args_->options.mean);
    const auto part = static_cast<T>(1 / args_->options.deviation);
    for_vectors<T>(0, valid * mels, [&](std::int64_t i, auto access) {
      access.store(out + i, (log(access.load(out + i)) - mean) * part);
    });
  }

  const ops::LogMel* args_;
  MelTableLayout at_;
  const double* tables_;
  int slots_[kHalf + 1];
};

template <class T, int kFft>
void run_groups(const ops::LogMel& args) {
  constexpr int kFrames = FrameGroups<T, kFft>::kFrames;
  const std::int64_t groups = (args.out.shape[1] + kFrames - 1) / kFrames;
  const FrameGroups<T, kFft> frames(args);
  parallel_ranges(args.out.shape[0] * groups, kFrames * kFft,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i)
                      frames.run(i / groups, i % groups * kFrames);
                  });
}

}  // namespace

template <class T>
void log_mel(const ops::LogMel& args) {
  switch (args.options.fft) {
    case 256:
      return run_groups<T, 256>(args);
    case 512:
      return run_groups<T, 512>(args);
    case 1024:
      return run_groups<T, 1024>(args);
  }
}

template void log_mel<float>(const ops::LogMel&);
template void log_mel<double>(const ops::LogMel&);

}  // namespace choir::cpu

namespace choir::ref {
namespace {

using Wide = long double;  // rounded once, at the end, so that deviations are those of the tested
                           // kernel
constexpr Wide kTurn = 6.283185307179586476925286766559L;

/// A normal number by Box and Muller from the words of sample n.
Wide normal_of(const ops::LogMel& args, std::int64_t row, std::int64_t n) {
  const auto id = static_cast<std::uint64_t>(args.sample_ids[row]);
  const PhiloxBlock w =
      philox(args.dither_key, {static_cast<std::uint32_t>(n / 4), 0, static_cast<std::uint32_t>(id),
                               static_cast<std::uint32_t>(id >> 32)});
  const std::size_t pair = n % 4 < 2 ? 0 : 2;
  const Wide radius = std::sqrt(-2 * std::log((w[pair] + Wide{1}) * 0x1p-32L));
  const Wide angle = kTurn * w[pair + 1] * 0x1p-32L;
  return radius * (n % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

/// The utterance with dither, after pre-emphasis.
std::vector<Wide> emphasised(const ops::LogMel& args, std::int64_t row) {
  const auto* audio =
      static_cast<const std::int16_t*>(args.audio.data) + row * args.audio.shape.back();
  std::vector<Wide> x(static_cast<std::size_t>(args.audio_lengths[row]));
  for (std::size_t n = 0; n < x.size(); ++n) {
    x[n] = audio[n] / Wide{32768};
    if (args.options.dither > 0)
      x[n] += args.options.dither * normal_of(args, row, static_cast<std::int64_t>(n));
  }
  for (std::size_t n = x.size(); n-- > 1;) x[n] -= args.options.preemphasis * x[n - 1];
  return x;
}

Wide hann(std::int64_t n, std::int64_t window) {
  if (window == 1) return 1;
  const Wide s = std::sin(kTurn / 2 * static_cast<Wide>(n) / static_cast<Wide>(window - 1));
  return s * s;
}

/// |X[k]|^2, k = 0 ... fft/2, for frames centred at any sample.
class Spectrum {
 public:
  explicit Spectrum(const ops::MelOptions& options) : o_(options) {
    for (std::int64_t i = 0; i < o_.fft; ++i)  // all possible angles
      cosine_.push_back(std::cos(kTurn * static_cast<Wide>(i) / static_cast<Wide>(o_.fft)));
    for (std::int64_t n = 0; n < o_.window; ++n) window_.push_back(hann(n, o_.window));
  }

  std::vector<Wide> power(const std::vector<Wide>& y, std::int64_t centre) const {
    const std::size_t size = cosine_.size(),
                      margin = static_cast<std::size_t>((o_.fft - o_.window) / 2);
    const std::int64_t first = centre - o_.fft / 2 + static_cast<std::int64_t>(margin);
    std::vector<Wide> frame(window_.size());
    for (std::size_t n = 0; n < frame.size(); ++n) {
      const std::int64_t i = first + static_cast<std::int64_t>(n);
      if (i >= 0 && i < static_cast<std::int64_t>(y.size()))
        frame[n] = y[static_cast<std::size_t>(i)] * window_[n];
    }
    std::vector<Wide> result;
    for (std::size_t k = 0; k <= size / 2; ++k) {
      Wide re = 0, im = 0;
      for (std::size_t n = 0; n < frame.size(); ++n) {
        re += frame[n] * cosine_[k * (n + margin) % size];
        im += frame[n] * cosine_[(k * (n + margin) + size / 4) % size];
      }
      result.push_back(re * re + im * im);
    }
    return result;
  }

 private:
  ops::MelOptions o_;
  std::vector<Wide> cosine_, window_;
};

Wide hertz_of_mel(Wide mel) {
  return mel < 15 ? mel * 200 / 3 : 1000 * std::pow(Wide{64} / 10, (mel - 15) / 27);
}

}  // namespace

std::vector<double> mel_filters(const ops::MelOptions& o) {
  const Wide high = o.high > 0 ? o.high : static_cast<Wide>(o.sample_rate) / 2;
  const Wide top =
      high < 1000 ? high * 3 / 200 : 15 + 27 * std::log(high / 1000) / std::log(Wide{64} / 10);
  const std::int64_t bins = o.fft / 2 + 1;
  std::vector<double> filters(static_cast<std::size_t>(o.mels * bins));
  for (std::int64_t m = 0; m < o.mels; ++m) {
    const Wide step = top / static_cast<Wide>(o.mels + 1), mel = step * static_cast<Wide>(m);
    const Wide a = hertz_of_mel(mel), b = hertz_of_mel(mel + step);
    const Wide c = m + 1 == o.mels ? high : hertz_of_mel(mel + 2 * step);
    for (std::int64_t k = 0; k < bins; ++k) {
      const Wide f = static_cast<Wide>(k * o.sample_rate) / static_cast<Wide>(o.fft);
      if (f > a && f < c)
        filters[static_cast<std::size_t>(m * bins + k)] =
            static_cast<double>(2 / (c - a) * (f <= b ? (f - a) / (b - a) : (c - f) / (c - b)));
    }
  }
  return filters;
}

void log_mel(const ops::LogMel& args) {
  const ops::MelOptions& o = args.options;
  const std::int64_t frames = args.out.shape[1];
  const std::vector<double> filters = mel_filters(o);
  const Spectrum spectrum(o);
  double* out = args.out.as<double>();
  for (std::int64_t b = 0; b < args.out.shape[0]; ++b) {
    const std::vector<Wide> y = emphasised(args, b);
    for (std::int64_t t = 0; t < frames; ++t) {
      double* row = out + (b * frames + t) * o.mels;
      for (std::int64_t m = 0; m < o.mels; ++m) row[m] = 0;
      if (t >= args.lengths[b]) continue;
      const std::vector<Wide> p = spectrum.power(y, t * o.hop);
      for (std::int64_t m = 0; m < o.mels; ++m) {
        Wide sum = 0;
        for (std::size_t k = 0; k < p.size(); ++k)
          sum += filters[static_cast<std::size_t>(m) * p.size() + k] * p[k];
        row[m] = static_cast<double>((std::log(sum + o.guard) - o.mean) / o.deviation);
      }
    }
  }
}

}  // namespace choir::ref
