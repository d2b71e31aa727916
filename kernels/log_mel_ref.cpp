#include <cmath>

#include "kernels/log_mel.hpp"

namespace choir::ref {
namespace {

constexpr double kTurn = 6.283185307179586476925;

/// Box and Muller in f64 from the words of sample n.
double normal_of(const ops::LogMel& args, std::int64_t row, std::int64_t n) {
  const auto id = static_cast<std::uint64_t>(args.sample_ids[row]);
  const PhiloxBlock w =
      philox(args.dither_key, {static_cast<std::uint32_t>(n / 4), 0, static_cast<std::uint32_t>(id),
                               static_cast<std::uint32_t>(id >> 32)});
  const std::size_t pair = n % 4 < 2 ? 0 : 2;
  const double radius = std::sqrt(-2 * std::log((w[pair] + 1.0) * 0x1p-32));
  const double angle = kTurn * uniform01(w[pair + 1]);
  return radius * (n % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

/// The utterance with dither, emphasised.
std::vector<double> emphasised(const ops::LogMel& args, std::int64_t row) {
  const auto* audio =
      static_cast<const std::int16_t*>(args.audio.data) + row * args.audio.shape.back();
  std::vector<double> x(static_cast<std::size_t>(args.audio_lengths[row]));
  for (std::size_t n = 0; n < x.size(); ++n) {
    x[n] = audio[n] / 32768.0;
    if (args.options.dither > 0)
      x[n] += args.options.dither * normal_of(args, row, static_cast<std::int64_t>(n));
  }
  for (std::size_t n = x.size(); n-- > 1;) x[n] -= args.options.preemphasis * x[n - 1];
  return x;
}

double hann(std::int64_t n, std::int64_t window) {
  if (window == 1) return 1;
  const double s = std::sin(kTurn / 2 * static_cast<double>(n) / static_cast<double>(window - 1));
  return s * s;
}

/// |X[k]|^2, k = 0 ... fft/2, of the frame centred at sample `centre`.
std::vector<double> power(const ops::MelOptions& o, const std::vector<double>& y,
                          std::int64_t centre) {
  std::vector<double> frame(static_cast<std::size_t>(o.fft)),
      result(static_cast<std::size_t>(o.fft / 2 + 1));
  const std::int64_t margin = (o.fft - o.window) / 2;
  for (std::int64_t n = 0; n < o.window; ++n) {
    const std::int64_t i = centre - o.fft / 2 + margin + n;
    if (i >= 0 && i < static_cast<std::int64_t>(y.size()))
      frame[static_cast<std::size_t>(margin + n)] =
          y[static_cast<std::size_t>(i)] * hann(n, o.window);
  }
  std::vector<double> cosine(frame.size());  // of all angles there are
  for (std::size_t i = 0; i < frame.size(); ++i)
    cosine[i] = std::cos(kTurn * static_cast<double>(i) / static_cast<double>(o.fft));
  const std::size_t size = frame.size();
  for (std::size_t k = 0; k < result.size(); ++k) {
    double re = 0, im = 0;
    for (std::size_t n = 0; n < size; ++n) {
      re += frame[n] * cosine[k * n % size];
      im += frame[n] * cosine[(k * n + size / 4) % size];
    }
    result[k] = re * re + im * im;
  }
  return result;
}

double hertz_of_mel(double mel) {
  return mel < 15 ? mel * 200 / 3 : 1000 * std::pow(6.4, (mel - 15) / 27);
}

}  // namespace

std::vector<double> mel_filters(const ops::MelOptions& o) {
  const double high = o.high > 0 ? o.high : static_cast<double>(o.sample_rate) / 2;
  const double top = high < 1000 ? high * 3 / 200 : 15 + 27 * std::log(high / 1000) / std::log(6.4);
  const std::int64_t bins = o.fft / 2 + 1;
  std::vector<double> filters(static_cast<std::size_t>(o.mels * bins));
  for (std::int64_t m = 0; m < o.mels; ++m) {
    const double step = top / static_cast<double>(o.mels + 1), mel = step * static_cast<double>(m);
    const double a = hertz_of_mel(mel), b = hertz_of_mel(mel + step),
                 c = hertz_of_mel(mel + 2 * step);
    for (std::int64_t k = 0; k < bins; ++k) {
      const double f = static_cast<double>(k * o.sample_rate) / static_cast<double>(o.fft);
      if (f > a && f < c)
        filters[static_cast<std::size_t>(m * bins + k)] =
            2 / (c - a) * (f <= b ? (f - a) / (b - a) : (c - f) / (c - b));
    }
  }
  return filters;
}

void log_mel(const ops::LogMel& args) {
  const ops::MelOptions& o = args.options;
  const std::int64_t frames = args.out.shape[1];
  const std::vector<double> filters = mel_filters(o);
  double* out = args.out.as<double>();
  for (std::int64_t b = 0; b < args.out.shape[0]; ++b) {
    const std::vector<double> y = emphasised(args, b);
    for (std::int64_t t = 0; t < frames; ++t) {
      double* row = out + (b * frames + t) * o.mels;
      for (std::int64_t m = 0; m < o.mels; ++m) row[m] = 0;
      if (t >= args.lengths[b]) continue;
      const std::vector<double> p = power(o, y, t * o.hop);
      for (std::int64_t m = 0; m < o.mels; ++m) {
        double sum = 0;
        for (std::size_t k = 0; k < p.size(); ++k)
          sum += filters[static_cast<std::size_t>(m) * p.size() + k] * p[k];
        row[m] = std::log(sum + kMelGuard);
      }
    }
  }
}

}  // namespace choir::ref
