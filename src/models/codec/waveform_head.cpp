#include "src/models/codec/waveform_head.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "choir/device/device.hpp"
#include "choir/models/model.hpp"
#include "kernels/features/spectra.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/sums/sums.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

enum WaveformTerm : std::size_t { kMelTerm, kStftTerm, kConvergenceTerm, kWaveformTerms };

constexpr double kMagnitudeGuard = 1e-5;  // added to powers, as in NeMo's STFT loss

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// A symmetric sin^2 window without zeros.
std::vector<double> sine_square(std::int64_t points) {
  std::vector<double> window;
  for (std::int64_t n = 0; n < points; ++n) {
    const std::int64_t near = std::min(n, points - 1 - n);
    const double sine =
        std::sin(M_PI * (static_cast<double>(near) + 0.5) / static_cast<double>(points));
    window.push_back(sine * sine);
  }
  return window;
}

/// Row k: window[n] cos(2 pi k (n - middle) / points); row bins + k: the same with -sin.
std::vector<double> transform_matrix(std::span<const double> window, std::int64_t points,
                                     std::int64_t middle) {
  const std::int64_t bins = points / 2 + 1, frame = std::ssize(window);
  std::vector<double> matrix(at(2 * bins * frame));
  for (std::int64_t k = 0; k < bins; ++k)
    for (std::int64_t n = 0; n < frame; ++n) {
      const std::int64_t turn = (k * (n - middle) % points + points) % points;
      const double angle = 2 * M_PI * static_cast<double>(turn) / static_cast<double>(points);
      matrix[at(k * frame + n)] = window[at(n)] * std::cos(angle);
      matrix[at((bins + k) * frame + n)] = -window[at(n)] * std::sin(angle);
    }
  return matrix;
}

/// The inverse transform of spectra around the middles of frames, for windows `hop` apart.
std::vector<double> inverse_matrix(std::int64_t points, std::int64_t hop) {
  const std::vector<double> window = sine_square(points);
  std::vector<double> dual = window;
  for (std::int64_t n = 0; n < points; ++n) {
    double sum = 0;  // over the windows that cover the same sample
    for (std::int64_t i = n % hop; i < points; i += hop) sum += window[at(i)] * window[at(i)];
    dual[at(n)] /= sum * static_cast<double>(points);
  }
  std::vector<double> matrix = transform_matrix(dual, points, points / 2);
  // The bins between the first and the last also represent their mirror images.
  for (std::int64_t row = 0; row < points + 2; ++row)
    for (std::int64_t n = 0; row % (points / 2 + 1) % (points / 2) != 0 && n < points; ++n)
      matrix[at(row * points + n)] *= 2;
  return matrix;
}

std::vector<double> dense_filters(const ops::MelOptions& mel) {
  const std::int64_t bins = mel.fft / 2 + 1;
  std::vector<double> filters(at(mel.mels * bins));
  std::int64_t row = 0;
  for (const ops::MelBand& band : ops::mel_bands(mel))
    std::copy(band.weights.begin(), band.weights.end(),
              filters.begin() + row++ * bins + band.first);
  return filters;
}

}  // namespace

std::vector<std::int64_t> parse_resolutions(const std::string& text, const std::string& key) {
  std::vector<std::int64_t> list;
  for (const std::string& part : split(text, ',')) {
    std::int64_t points = 0;
    const auto end = std::from_chars(part.data(), part.data() + part.size(), points);
    if (end.ec != std::errc() || end.ptr != part.data() + part.size() || points < 8 ||
        points > 65536 || points % 4 != 0)
      throw DeckError(fmt::format("{} = \"{}\": '{}' is no transform", key, text, part),
                      "points, multiples of 4 from 8 to 65536, \"256,512,1024\"");
    list.push_back(points);
  }
  return list;
}

// Filters of unit area pass about fft / sample_rate of the power of their bins.
WaveformHead::WaveformHead(const CodecConfig& config)
    : config_(config),
      polar_{.gain = config.mel.deviation / 2,
             .offset = (config.mel.mean + std::log(static_cast<double>(config.mel.sample_rate) /
                                                   static_cast<double>(config.mel.fft))) /
                       2,
             .most = static_cast<double>(config.mel.fft) / 4},  // a sine of full scale
      bins_(config.mel.fft / 2 + 1) {
  const ops::MelOptions& mel = config.mel;
  looks_.push_back({.frame = mel.window,
                    .hop = mel.hop,
                    .lead = ops::mel_window_lead(mel),
                    .bins = bins_,
                    .bands = mel.mels,
                    .guard = mel.guard,
                    .window = ops::mel_window(mel),
                    .points = mel.fft,
                    .basis = {},
                    .filters = {}});
  for (const std::int64_t points : config.transforms())
    looks_.push_back({.frame = points,
                      .hop = points / 4,
                      .lead = (points - points / 4) / 2,
                      .bins = points / 2 + 1,
                      .bands = 0,
                      .guard = kMagnitudeGuard,
                      .window = sine_square(points),
                      .points = points,
                      .basis = {},
                      .filters = {}});
}

template <class F>
void WaveformHead::for_tables(const F& f) {
  const std::int64_t fft = config_.mel.fft;
  f(synthesis_, Shape{2 * bins_, fft}, [&] { return inverse_matrix(fft, config_.mel.hop); });
  for (Look& look : looks_) {
    f(look.basis, Shape{2 * look.bins, look.frame},
      [&] { return transform_matrix(look.window, look.points, 0); });
    if (look.bands > 0)
      f(look.filters, Shape{look.bands, look.bins}, [&] { return dense_filters(config_.mel); });
  }
}

std::size_t WaveformHead::table_bytes(DType real) const {
  std::size_t bytes = 0;
  WaveformHead shapes(config_);
  shapes.for_tables([&](TensorView&, const Shape& shape, const auto&) {
    bytes += padded_field_bytes({nullptr, real, shape});
  });
  return bytes;
}

void WaveformHead::make_tables(const Stream& stream, DType real, void* memory) {
  auto* next = static_cast<std::byte*>(memory);
  for_tables([&](TensorView& table, const Shape& shape, const auto& numbers) {
    table = {next, real, shape};
    next += padded_field_bytes(table);
    if (stream.kind() == DeviceKind::null) return;
    const std::vector<double> exact = numbers();
    if (real == DType::f64) {
      stream.copy_from_host(table.data, exact.data(), table.bytes());
      return stream.synchronize();
    }
    const std::vector<float> rounded(exact.begin(), exact.end());
    stream.copy_from_host(table.data, rounded.data(), table.bytes());
    stream.synchronize();
  });
}

Tensor WaveformHead::real_rows(Pass& pass, const Tensor& rows) const {
  const Shape wide{rows.shape.rows() * config_.rows, 2 * bins_};
  if (rows.dtype == pass.precision().statistic) return rows.reshaped(wide);
  const Tensor real = pass.allocate_statistic(wide, "magnitudes and phases");
  ops::cast(pass.stream(), rows, real);
  return real;
}

Tensor WaveformHead::spectra(Pass& pass, const Tensor& polar) const {
  Tensor spectra = pass.allocate_statistic(polar.shape, "spectra");
  ops::polar_forward(pass.stream(), polar_, polar, spectra);
  return spectra;
}

Tensor WaveformHead::synthesise(Pass& pass, const Tensor& spectra, std::int64_t sounds) const {
  Tensor frames = pass.allocate_statistic({sounds, spectra.shape[0] / sounds, config_.mel.fft},
                                          "frames of sound");
  ops::gemm(pass.stream(), spectra, synthesis_, frames);
  return frames;
}

Tensor WaveformHead::frames(Pass& pass, const Tensor& rows) const {
  return synthesise(pass, spectra(pass, real_rows(pass, rows)), 1);
}

ops::SoundFrames WaveformHead::framing(const Pass& pass, std::int64_t hop,
                                       std::int64_t lead) const {
  return {.hop = hop,
          .lead = lead,
          .unit = config_.frame_samples(),
          .lengths = pass.sequence().lengths};
}

Tensor WaveformHead::powers(Pass& pass, const Look& look, const Tensor& frames,
                            Tensor* kept) const {
  const Stream& stream = pass.stream();
  const std::int64_t rows = frames.shape[0] * frames.shape[1];
  Tensor spectra = pass.allocate_statistic({rows, 2 * look.bins}, "spectra");
  ops::gemm(stream, frames, look.basis, spectra, {.transpose_b = true});
  Tensor powers = pass.allocate_statistic({rows, look.bins}, "powers");
  ops::power_forward(stream, spectra, powers);
  if (kept != nullptr) *kept = std::move(spectra);
  if (look.bands == 0) return powers;
  Tensor mel = pass.allocate_statistic({rows, look.bands}, "mel powers");
  ops::gemm(stream, powers, look.filters, mel, {.transpose_b = true});
  return mel;
}

ops::SpectralLoss WaveformHead::loss_of(const Pass& pass, const Look& look, const ModelBatch& batch,
                                        const Tensor& losses) const {
  const auto term = [&](WaveformTerm which, double factor) -> ops::SpectralTerm {
    return {.losses = losses_of_term(losses, which, kWaveformTerms),
            .factor = factor,
            .scale = batch.scale,
            .device_scale = batch.device_scale(which)};
  };
  const auto rows = static_cast<double>(config_.frame_samples() / look.hop);
  ops::SpectralLoss loss{.predicted = {},
                         .target = {},
                         .lengths = pass.sequence().lengths,
                         .tokens = pass.sequence().tokens,
                         .guard = look.guard,
                         .logarithms = {},
                         .convergence = {},
                         .write_gradient = pass.training()};
  if (look.bands > 0) {
    loss.logarithms = term(kMelTerm, 1 / (rows * static_cast<double>(look.bands)));
    return loss;
  }
  const auto resolutions = static_cast<double>(looks_.size() - 1);
  // The logarithm of a magnitude is half that of its power.
  loss.logarithms = term(kStftTerm, 0.5 / (rows * static_cast<double>(look.bins) * resolutions));
  loss.convergence = term(kConvergenceTerm, 1 / resolutions);
  return loss;
}

void WaveformHead::look_at(Pass& pass, const Look& look, const Tensor& wave,
                           const ModelBatch& batch, const Tensor& losses,
                           const Tensor& d_wave) const {
  const Stream& stream = pass.stream();
  const ops::SoundFrames how = framing(pass, look.hop, look.lead);
  const std::int64_t units = pass.sequence().rows();
  const Tensor frames = pass.allocate_statistic(
      {wave.shape[0], wave.shape[1] / look.hop, look.frame}, "frames of sound");
  ops::split_pcm(stream, how, batch["audio"], batch["audio_lengths"].as<std::int32_t>(), frames);
  const Tensor target = powers(pass, look, frames, nullptr);
  ops::split_frames(stream, how, wave, frames);
  Tensor spectra;
  const Tensor predicted = powers(pass, look, frames, &spectra);
  ops::SpectralLoss loss = loss_of(pass, look, batch, losses);
  const Shape of_units{units, predicted.count() / units};
  loss.predicted = predicted.reshaped(of_units);
  loss.target = target.reshaped(of_units);
  ops::spectral_loss(stream, loss);
  if (!pass.training()) return;
  Tensor d_powers = predicted;
  if (look.bands > 0) {
    d_powers = pass.allocate_statistic({spectra.shape[0], look.bins}, "gradient of powers");
    ops::gemm(stream, predicted, look.filters, d_powers);
  }
  ops::power_backward(stream, spectra, d_powers, spectra);
  ops::gemm(stream, spectra, look.basis, frames);
  ops::join_frames(stream, how, frames, d_wave, true);
}

WaveformHead::Compared WaveformHead::compare(Pass& pass, const Tensor& rows,
                                             const ModelBatch& batch) const {
  const ProfileRange range(pass.stream(), "waveform and loss");
  const Stream& stream = pass.stream();
  const Sequence& sequence = pass.sequence();
  const ops::SoundFrames how =
      framing(pass, config_.mel.hop, (config_.mel.fft - config_.mel.hop) / 2);
  const Tensor polar = real_rows(pass, rows);
  const Shape sound{sequence.batch, sequence.tokens * config_.frame_samples()};
  const Tensor wave = pass.allocate_statistic(sound, "waveform");
  ops::join_frames(stream, how, synthesise(pass, spectra(pass, polar), sequence.batch), wave);
  Compared result{.losses = pass.allocate_statistic({kWaveformTerms, sequence.rows()}, "losses"),
                  .d_rows = {}};
  ops::zero(stream, result.losses);
  Tensor d_wave;
  if (pass.training()) {
    d_wave = pass.allocate_statistic(sound, "gradient of the waveform");
    ops::zero(stream, d_wave);
  }
  for (const Look& look : looks_) look_at(pass, look, wave, batch, result.losses, d_wave);
  if (!pass.training()) return result;
  const Tensor d_frames = pass.allocate_statistic(
      {sequence.batch, polar.shape[0] / sequence.batch, config_.mel.fft}, "gradient of frames");
  ops::split_frames(stream, how, d_wave, d_frames);
  const Tensor d_spectra = pass.allocate_statistic(polar.shape, "gradient of spectra");
  ops::gemm(stream, d_frames, synthesis_, d_spectra, {.transpose_b = true});
  const bool same = rows.dtype == polar.dtype;
  result.d_rows = pass.allocate(rows.shape, "gradient of magnitudes and phases");
  const Tensor d_polar =
      same ? result.d_rows.reshaped(polar.shape)
           : pass.allocate_statistic(polar.shape, "gradient of magnitudes and phases");
  ops::polar_backward(stream, polar_, polar, d_spectra, d_polar);
  if (!same) ops::cast(stream, d_polar, result.d_rows);
  return result;
}

// The target has no gradient, so it costs a third of the three products of training.
double WaveformHead::flops(const CodecConfig& config) {
  const auto product = [&](std::int64_t points, std::int64_t frame, std::int64_t hop) {
    return 2 * static_cast<double>((points + 2) * frame * (config.frame_samples() / hop));
  };
  const ops::MelOptions& mel = config.mel;
  double looks = product(mel.fft, mel.window, mel.hop);
  for (const std::int64_t points : config.transforms())
    looks += product(points, points, points / 4);
  return product(mel.fft, mel.fft, mel.hop) + looks * 4 / 3;
}

}  // namespace choir
