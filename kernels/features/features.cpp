// Speech features: the tables of mel filters and windows; checks and dispatch of all features; CPU
// twins and fp64 references of SpecAugment and of the normalisation. The spectra are in
// log_mel.cpp.

#include "kernels/features/features.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir {
namespace {

// The Slaney scale: linear up to 1 kHz, 15 mel, then a factor of 6.4 every 27 mel. All tables are
// computed in extended precision and rounded once: a weight near the edge of its filter is a small
// difference of large frequencies.
using Wide = long double;
constexpr Wide kHertzPerMel = Wide{200} / 3, kBreakHertz = 1000, kBreakMel = 15;
const Wide kLogStep = std::log(Wide{64} / 10) / 27;

Wide mel_of(Wide hertz) {
  return hertz < kBreakHertz ? hertz / kHertzPerMel
                             : kBreakMel + std::log(hertz / kBreakHertz) / kLogStep;
}
Wide hertz_of(Wide mel) {
  return mel < kBreakMel ? mel * kHertzPerMel
                         : kBreakHertz * std::exp(kLogStep * (mel - kBreakMel));
}

/// Triangles over mels + 2 edges at equal distances in mel, each of area 1.
void put_filters(const ops::MelOptions& options, const MelTableLayout& at, double* tables) {
  const auto rate = static_cast<Wide>(options.sample_rate);
  const Wide end = options.high > 0 ? static_cast<Wide>(options.high) : rate / 2;
  const Wide top = mel_of(end);
  // The last edge is exactly `end`; if it were rounded, it could include the bin at the end.
  const auto edge = [&](std::int64_t i) {
    return i > options.mels
               ? end
               : hertz_of(top * static_cast<Wide>(i) / static_cast<Wide>(options.mels + 1));
  };
  std::int64_t used = 0;
  for (std::int64_t m = 0; m < options.mels; ++m) {
    const Wide low = edge(m), centre = edge(m + 1), high = edge(m + 2);
    std::int64_t first = 0, bins = 0;
    for (std::int64_t k = 0; k <= options.fft / 2; ++k) {
      const Wide f = static_cast<Wide>(k) * rate / static_cast<Wide>(options.fft);
      const Wide height = std::min((f - low) / (centre - low), (high - f) / (high - centre));
      if (height <= 0) continue;
      if (bins++ == 0) first = k;
      tables[at.weights + used + bins - 1] = static_cast<double>(height * 2 / (high - low));
    }
    double* band = tables + at.bands + 3 * m;
    band[0] = static_cast<double>(first), band[1] = static_cast<double>(bins);
    band[2] = static_cast<double>(used);
    used += bins;
  }
  CHOIR_CHECK(used <= options.fft + 2, "{} weights of mel filters", used);
}

}  // namespace

std::vector<double> mel_tables(const ops::MelOptions& options) {
  const MelTableLayout at = mel_table_layout(options);
  std::vector<double> tables(static_cast<std::size_t>(at.size));
  constexpr Wide kTurn = 6.283185307179586476925286766559L;
  if (options.window == 1) tables[0] = 1;
  for (std::int64_t n = 0; n < options.window && options.window > 1; ++n) {
    // Computed from the nearer end, so that the window is symmetric and 0 at both ends.
    const std::int64_t near = std::min(n, options.window - 1 - n);
    const Wide sine =
        std::sin(kTurn / 2 * static_cast<Wide>(near) / static_cast<Wide>(options.window - 1));
    tables[static_cast<std::size_t>(n)] = static_cast<double>(sine * sine);
  }
  for (std::int64_t k = 0; k < options.fft; ++k) {
    // Computed from the first quarter turn, so that the roots are exactly symmetric.
    const std::int64_t quarter = options.fft / 4, r = k % quarter;
    const Wide angle = kTurn * static_cast<Wide>(r) / static_cast<Wide>(options.fft);
    auto c = static_cast<double>(std::cos(angle)), s = static_cast<double>(-std::sin(angle));
    for (std::int64_t q = k / quarter; q > 0; --q) {
      const double turned = s;
      s = -c, c = turned;
    }
    tables[static_cast<std::size_t>(at.roots + 2 * k)] = c;
    tables[static_cast<std::size_t>(at.roots + 2 * k + 1)] = s;
  }
  put_filters(options, at, tables.data());
  return tables;
}

}  // namespace choir

namespace choir::ops {
namespace {

void check_real(const TensorView& x, const char* name) {
  CHOIR_CHECK(x.dtype == DType::f32 || x.dtype == DType::f64,
              "{} has type {}: features are f32 or f64", name, name_of(x.dtype));
}

/// Checks [B, T, F] and, if the host can read them, its lengths.
void check_features(const Stream& stream, const TensorView& x, const std::int32_t* lengths) {
  CHOIR_CHECK(x.shape.rank() == 3, "features are {}, not [B, T, F]", to_string(x.shape));
  check_real(x, "features");
  check_tensor(x, x.dtype, x.count(), "features");
  CHOIR_CHECK(lengths != nullptr || x.shape[0] == 0, "lengths are missing");
  if (stream.kind() != DeviceKind::cpu) return;
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    CHOIR_CHECK(lengths[b] >= 0 && lengths[b] <= x.shape[1], "row {}: {} frames of {}", b,
                lengths[b], x.shape[1]);
}

void check_log_mel(const Stream& stream, const LogMel& args) {
  const MelOptions& o = args.options;
  check(o);
  check_features(stream, args.out, args.lengths);
  const std::int64_t batch = args.out.shape[0];
  CHOIR_CHECK(args.out.shape.back() == o.mels, "features are {}, of {} mels",
              to_string(args.out.shape), o.mels);
  CHOIR_CHECK(args.audio.shape.rank() == 2, "audio is {}, not [B, S]", to_string(args.audio.shape));
  check_tensor(args.audio, DType::u16, batch * args.audio.shape.back(), "audio");
  check_tensor(args.tables, DType::u8, mel_table_bytes(o), "tables");
  CHOIR_CHECK(batch == 0 || args.audio_lengths != nullptr, "audio_lengths are missing");
  CHOIR_CHECK(o.dither == 0 || batch == 0 || args.sample_ids != nullptr,
              "dither without sample_ids");
  if (stream.kind() != DeviceKind::cpu) return;
  for (std::int64_t b = 0; b < batch; ++b)
    CHOIR_CHECK(args.audio_lengths[b] >= 0 && args.audio_lengths[b] <= args.audio.shape.back(),
                "row {}: {} samples of {}", b, args.audio_lengths[b], args.audio.shape.back());
}

}  // namespace

std::optional<MelFault> mel_fault(const MelOptions& o) {
  std::optional<MelFault> fault;
  const auto want = [&](bool good, const char* option, auto value, const char* legal) {
    if (!good && !fault) fault = {option, fmt::format("{}", value), legal};
  };
  want(std::find(std::begin(kMelTransforms), std::end(kMelTransforms), o.fft) !=
           std::end(kMelTransforms),
       "fft", o.fft, "transforms of 256, 512 or 1024 samples");
  want(o.window >= 1 && o.window <= o.fft, "window", o.window, "1 ... fft samples");
  want(o.hop >= 1 && o.hop <= o.fft, "hop", o.hop, "1 ... fft samples");
  want(o.mels >= 1 && o.mels <= o.fft / 2 + 1, "mels", o.mels, "1 ... fft / 2 + 1");
  want(o.sample_rate >= 1, "sample_rate", o.sample_rate, "a rate in Hz");
  want(o.high >= 0 && o.high <= static_cast<double>(o.sample_rate) / 2, "mel_high", o.high,
       "at most half the sample rate; 0 means half");
  want(std::isfinite(o.preemphasis), "preemphasis", o.preemphasis,
       "a finite number; 0.97 is usual, 0 disables it");
  want(std::isfinite(o.dither) && o.dither >= 0, "dither", o.dither,
       "0 or more; 1e-5 is usual, 0 disables it");
  want(std::isfinite(o.guard) && o.guard > 0, "log_guard", o.guard, "above 0; 2^-24 is usual");
  want(std::isfinite(o.mean), "feature_mean", o.mean, "a finite number; 0 subtracts nothing");
  want(std::isfinite(o.deviation) && o.deviation > 0, "feature_deviation", o.deviation,
       "above 0; 1 disables the division");
  return fault;
}

void check(const MelOptions& options) {
  if (const auto fault = mel_fault(options))
    throw DeckError(fmt::format("log-mel features: {} = {}", fault->option, fault->value),
                    fault->legal);
}

std::int64_t mel_table_bytes(const MelOptions& options) {
  return mel_table_layout(options).size * static_cast<std::int64_t>(sizeof(double));
}

void make_mel_tables(const Stream& stream, const MelOptions& options, const TensorView& tables) {
  check(options);
  check_tensor(tables, DType::u8, mel_table_bytes(options), "tables");
  stream.count(0, as_bytes(tables));
  if (!on_cuda(stream) && !computes(stream)) return;
  const std::vector<double> exact = mel_tables(options);
  stream.copy_from_host(tables.data, exact.data(), exact.size() * sizeof(double));
  stream.synchronize();
}

void log_mel(const Stream& stream, const LogMel& args) {
  check_log_mel(stream, args);
  const MelOptions& o = args.options;
  const auto frames = static_cast<double>(args.out.shape[0] * args.out.shape[1]);
  const auto fft = static_cast<double>(o.fft), window = static_cast<double>(o.window);
  // Terms: windowed frame; complex transform of half the size; its halves and powers; filters.
  stream.count(frames * (4 * window + 2.5 * fft * std::log2(fft / 2) + 9 * fft + 2 * fft),
               as_bytes(args.audio) + as_bytes(args.out) + as_bytes(args.tables));
  if (args.out.count() == 0) return;
  if (on_cuda(stream)) return cuda::log_mel(stream, args);
  if (!computes(stream)) return;
  args.out.dtype == DType::f64 ? cpu::log_mel<double>(args) : cpu::log_mel<float>(args);
}

void normalise_features(const Stream& stream, const TensorView& x, const std::int32_t* lengths) {
  check_features(stream, x, lengths);
  stream.count(6 * static_cast<double>(x.count()), 2 * as_bytes(x));
  if (x.count() == 0) return;
  if (on_cuda(stream)) return cuda::normalise_features(stream, x, lengths);
  if (!computes(stream)) return;
  x.dtype == DType::f64 ? cpu::normalise_features<double>(x, lengths)
                        : cpu::normalise_features<float>(x, lengths);
}

void spec_augment(const Stream& stream, const SpecAugment& options, const TensorView& x,
                  const std::int32_t* lengths, const std::int64_t* sample_ids, PhiloxKey key) {
  check_features(stream, x, lengths);
  CHOIR_CHECK(x.shape[0] == 0 || sample_ids != nullptr, "sample_ids are missing");
  CHOIR_CHECK(options.time_masks >= 0 && options.frequency_masks >= 0 &&
                  options.time_masks + options.frequency_masks <= kMostMasks,
              "{} masks of time and {} of frequency, at most {}", options.time_masks,
              options.frequency_masks, kMostMasks);
  CHOIR_CHECK(options.time_width >= 0 && std::isfinite(options.time_width), "time_width is {}",
              options.time_width);
  CHOIR_CHECK(options.frequency_masks == 0 ||
                  (options.frequency_width >= 0 && options.frequency_width <= x.shape.back()),
              "masks of {} of {} bins", options.frequency_width, x.shape.back());
  // Elements that the masks leave: each mask clears on average half of its maximum width.
  const auto frames = static_cast<double>(x.shape[0] * x.shape[1]);
  const auto bins = static_cast<double>(x.shape.back());
  const double time = options.time_width < 1
                          ? options.time_width
                          : std::min(1.0, options.time_width / static_cast<double>(x.shape[1]));
  const double spared = std::pow(1 - time / 2, options.time_masks) *
                        std::pow(1 - static_cast<double>(options.frequency_width) / bins / 2,
                                 options.frequency_masks);
  if (x.count() > 0)
    stream.count(0, (1 - spared) * frames * bins * static_cast<double>(size_of(x.dtype)));
  if (x.count() == 0) return;
  if (on_cuda(stream)) return cuda::spec_augment(stream, options, x, lengths, sample_ids, key);
  if (!computes(stream)) return;
  x.dtype == DType::f64 ? cpu::spec_augment<double>(options, x, lengths, sample_ids, key)
                        : cpu::spec_augment<float>(options, x, lengths, sample_ids, key);
}

}  // namespace choir::ops

namespace choir::cpu {

template <class T>
void spec_augment(const ops::SpecAugment& options, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  parallel_ranges(x.shape[0], frames * bins / 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      T* row = x.as<T>() + b * frames * bins;
      for (std::int64_t i = 0; i < options.time_masks; ++i) {
        const Mask mask =
            time_mask(options, key, static_cast<std::uint32_t>(i), sample_ids[b], lengths[b]);
        std::fill_n(row + mask.start * bins, mask.width * bins, T(0));
      }
      for (std::int64_t i = 0; i < options.frequency_masks; ++i) {
        const Mask mask =
            frequency_mask(options, key, static_cast<std::uint32_t>(i), sample_ids[b], bins);
        for (std::int64_t t = 0; t < lengths[b]; ++t)
          std::fill_n(row + t * bins + mask.start, mask.width, T(0));
      }
    }
  });
}

template void spec_augment<float>(const ops::SpecAugment&, const TensorView&, const std::int32_t*,
                                  const std::int64_t*, PhiloxKey);
template void spec_augment<double>(const ops::SpecAugment&, const TensorView&, const std::int32_t*,
                                   const std::int64_t*, PhiloxKey);

namespace {

constexpr std::int64_t kBlock = 32;  // frames summed in the type of the features

/// Sums f(x) over n frames of a vector of bins.
template <class T, class Access, class F>
void column_sums(const T* x, std::int64_t n, std::int64_t bins, Access access, double* sums,
                 const F& f) {
  std::fill(sums, sums + kLanes<T>, 0.0);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t last = std::min(first + kBlock, n);
    Vec<T> sum{};
    for (std::int64_t t = first; t < last; ++t) sum += f(access.load(x + t * bins));
    for (int i = 0; i < kLanes<T>; ++i) sums[i] += static_cast<double>(sum[i]);
  }
}

/// Normalises a vector of bins of one utterance with n valid frames.
template <class T, class Access>
void normalise(T* x, std::int64_t n, std::int64_t bins, Access access) {
  double sums[kLanes<T>];
  Vec<T> mean{}, scale{};
  const auto count = static_cast<double>(n);
  column_sums(x, n, bins, access, sums, [](Vec<T> v) { return v; });
  for (int i = 0; i < kLanes<T>; ++i) mean[i] = static_cast<T>(sums[i] / count);
  column_sums(x, n, bins, access, sums, [&](Vec<T> v) { return (v - mean) * (v - mean); });
  for (int i = 0; i < kLanes<T>; ++i) {
    const double deviation = n < 2 ? 0 : std::sqrt(sums[i] / (count - 1));
    scale[i] = static_cast<T>(1 / (deviation + kStandardDeviationGuard));
  }
  for (std::int64_t t = 0; t < n; ++t)
    access.store(x + t * bins, (access.load(x + t * bins) - mean) * scale);
}

}  // namespace

template <class T>
void normalise_features(const TensorView& x, const std::int32_t* lengths) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  const std::int64_t vectors = (bins + kLanes<T> - 1) / kLanes<T>;
  parallel_ranges(
      x.shape[0] * vectors, frames * kLanes<T> * 3, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t b = i / vectors, bin = i % vectors * kLanes<T>;
          T* row = x.as<T>() + b * frames * bins;
          const std::int64_t n = lengths[b], here = std::min<std::int64_t>(kLanes<T>, bins - bin);
          if (n > 0 && here == kLanes<T>)
            normalise<T>(row + bin, n, bins, WholeVectors{});
          else if (n > 0)
            normalise<T>(row + bin, n, bins, RaggedVector{here});
          for (std::int64_t t = n; t < frames; ++t) std::fill_n(row + t * bins + bin, here, T(0));
        }
      });
}

template void normalise_features<float>(const TensorView&, const std::int32_t*);
template void normalise_features<double>(const TensorView&, const std::int32_t*);

}  // namespace choir::cpu

namespace choir::ref {
namespace {

/// True if mask i of a kind covers position `at` of `extent`.
bool covers(PhiloxKey key, std::int64_t i, std::uint32_t kind, std::int64_t sample, double widest,
            std::int64_t extent, std::int64_t at) {
  const PhiloxBlock u = philox(
      key, {static_cast<std::uint32_t>(i), kind, static_cast<std::uint32_t>(sample & 0xffffffff),
            static_cast<std::uint32_t>(sample >> 32)});
  const double width = std::floor(u[0] / 4294967296.0 * widest);
  const double start = std::floor(u[1] / 4294967296.0 * (static_cast<double>(extent) - width));
  return static_cast<double>(at) >= start && static_cast<double>(at) < start + width;
}

}  // namespace

void spec_augment(const ops::SpecAugment& o, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::int64_t b = i / (frames * bins), t = i / bins % frames, f = i % bins;
    const std::int64_t length = lengths[b];
    if (t >= length) continue;
    const double wide =
        o.time_width < 1 ? o.time_width * static_cast<double>(length) : o.time_width;
    bool masked = false;
    for (std::int64_t m = 0; m < o.time_masks; ++m)
      masked |=
          covers(key, m, 0, sample_ids[b], std::min(wide, static_cast<double>(length)), length, t);
    for (std::int64_t m = 0; m < o.frequency_masks; ++m)
      masked |= covers(key, m, 1, sample_ids[b], static_cast<double>(o.frequency_width), bins, f);
    if (masked) x.as<double>()[i] = 0;
  }
}

void normalise_features(const TensorView& x, const std::int32_t* lengths) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t m = 0; m < bins; ++m) {
      double* column = x.as<double>() + b * frames * bins + m;
      const std::int64_t n = lengths[b];
      double sum = 0, squares = 0;
      for (std::int64_t t = 0; t < n; ++t) sum += column[t * bins];
      const double mean = sum / static_cast<double>(n);
      for (std::int64_t t = 0; t < n; ++t) squares += std::pow(column[t * bins] - mean, 2);
      const double deviation = n < 2 ? 0 : std::sqrt(squares / static_cast<double>(n - 1));
      for (std::int64_t t = 0; t < frames; ++t)
        column[t * bins] =
            t < n ? (column[t * bins] - mean) / (deviation + kStandardDeviationGuard) : 0;
    }
}

}  // namespace choir::ref
