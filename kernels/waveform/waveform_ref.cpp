#include <cmath>

#include "kernels/waveform/waveform.hpp"

namespace choir::ref {
namespace {

/// Sample s of sound b; 0 where invalid.
double sample_of(const FramesOf& of, const TensorView& sound, std::int64_t b, std::int64_t s) {
  if (s < 0 || s >= of.lengths[b] * of.unit) return 0;
  if (of.audio_lengths == nullptr) return sound.as<double>()[b * of.width + s];
  if (s >= of.audio_lengths[b]) return 0;
  return static_cast<const std::int16_t*>(sound.data)[b * of.width + s] / 32768.0;
}

bool frame_counts(const FramesOf& of, std::int64_t b, std::int64_t r) {
  return r * of.hop < of.lengths[b] * of.unit;
}

}  // namespace

void split_frames(const FramesOf& of, const TensorView& sound, double* frames) {
  for (std::int64_t b = 0; b < of.sounds; ++b)
    for (std::int64_t r = 0; r < of.rows; ++r)
      for (std::int64_t n = 0; n < of.frame; ++n)
        frames[(b * of.rows + r) * of.frame + n] =
            frame_counts(of, b, r) ? sample_of(of, sound, b, r * of.hop - of.lead + n) : 0;
}

void join_frames(const FramesOf& of, const double* frames, double* sound, bool accumulate) {
  for (std::int64_t b = 0; b < of.sounds; ++b)
    for (std::int64_t s = 0; s < of.width; ++s) {
      double sum = 0;
      for (std::int64_t r = 0; r < of.rows; ++r) {
        const std::int64_t n = s - r * of.hop + of.lead;
        if (frame_counts(of, b, r) && n >= 0 && n < of.frame)
          sum += frames[(b * of.rows + r) * of.frame + n];
      }
      if (s >= of.lengths[b] * of.unit) sum = 0;
      sound[b * of.width + s] = sum + (accumulate ? sound[b * of.width + s] : 0);
    }
}

void polar_forward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const double* polar,
                   double* spectra) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < bins; ++k) {
      const std::int64_t re = r * 2 * bins + k, im = re + bins;
      const double magnitude = std::fmin(how.most, std::exp(how.gain * polar[re] + how.offset));
      spectra[re] = magnitude * std::cos(polar[im]);
      spectra[im] = magnitude * std::sin(polar[im]);
    }
}

void polar_backward(const ops::Polar& how, std::int64_t rows, std::int64_t bins,
                    const double* polar, const double* d_spectra, double* d_polar) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < bins; ++k) {
      const std::int64_t re = r * 2 * bins + k, im = re + bins;
      const double free = std::exp(how.gain * polar[re] + how.offset), p = polar[im];
      const double magnitude = std::fmin(how.most, free);
      const double along = d_spectra[re] * std::cos(p) + d_spectra[im] * std::sin(p);
      const double across = d_spectra[im] * std::cos(p) - d_spectra[re] * std::sin(p);
      d_polar[re] = free < how.most ? how.gain * magnitude * along : 0;
      d_polar[im] = magnitude * across;
    }
}

void power_forward(std::int64_t rows, std::int64_t bins, const double* spectra, double* powers) {
  for (std::int64_t i = 0; i < rows * bins; ++i) {
    const std::int64_t re = i / bins * 2 * bins + i % bins;
    powers[i] = spectra[re] * spectra[re] + spectra[re + bins] * spectra[re + bins];
  }
}

void power_backward(std::int64_t rows, std::int64_t bins, const double* spectra,
                    const double* d_powers, double* d_spectra) {
  for (std::int64_t i = 0; i < rows * bins; ++i) {
    const std::int64_t re = i / bins * 2 * bins + i % bins;
    for (const std::int64_t at : {re, re + bins}) d_spectra[at] = 2 * spectra[at] * d_powers[i];
  }
}

void spectral_loss(const ops::SpectralLoss& args) {
  const std::int64_t width = args.predicted.shape.back();
  const auto step = [](const ops::SpectralTerm& term) {
    return term.losses.empty()
               ? 0
               : term.factor * term.scale * (term.device_scale ? *term.device_scale : 1);
  };
  for (std::int64_t r = 0; r < args.predicted.shape.rows(); ++r) {
    double* predicted = args.predicted.as<double>() + r * width;
    const double* target = args.target.as<double>() + r * width;
    const bool counts = args.lengths == nullptr || r % args.tokens < args.lengths[r / args.tokens];
    double logarithms = 0, distance = 0, length = 0;
    for (std::int64_t c = 0; counts && c < width; ++c) {
      const double p = predicted[c] + args.guard, t = target[c] + args.guard;
      logarithms += std::fabs(std::log(p) - std::log(t));
      distance += std::pow(std::sqrt(p) - std::sqrt(t), 2);
      length += t;
    }
    distance = std::sqrt(distance), length = std::sqrt(length);
    if (counts && !args.logarithms.losses.empty())
      args.logarithms.losses.as<double>()[r] += args.logarithms.factor * logarithms;
    if (counts && !args.convergence.losses.empty())
      args.convergence.losses.as<double>()[r] += args.convergence.factor * distance / length;
    for (std::int64_t c = 0; args.write_gradient && c < width; ++c) {
      const double p = predicted[c] + args.guard, t = target[c] + args.guard;
      double slope = 0;
      if (counts) slope = step(args.logarithms) * (p > t ? 1 : p < t ? -1 : 0) / p;
      if (counts && distance > 0)
        slope += step(args.convergence) * (std::sqrt(p) - std::sqrt(t)) / (distance * length) /
                 (2 * std::sqrt(p));
      predicted[c] = slope;
    }
  }
}

}  // namespace choir::ref
