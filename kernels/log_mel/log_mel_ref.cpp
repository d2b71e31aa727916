#include <cmath>

#include "kernels/log_mel/log_mel.hpp"

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
