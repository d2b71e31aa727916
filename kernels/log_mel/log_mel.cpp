#include "choir/ops/log_mel.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.hpp"
#include "kernels/feature_statistics/feature_statistics.hpp"
#include "kernels/log_mel/log_mel.hpp"
#include "kernels/log_mel/mel_tables.hpp"
#include "kernels/spec_augment/spec_augment.hpp"

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
