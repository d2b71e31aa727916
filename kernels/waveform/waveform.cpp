#include "kernels/waveform/waveform.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

/// Calls f(pointer type) for f32 on both devices and f64 on the CPU.
template <class Cuda, class Cpu>
void run_real(const Stream& stream, DType dtype, const Cuda& on_card, const Cpu& on_host) {
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64, "spectra of {}", name_of(dtype));
  if (on_cuda(stream)) {
    CHOIR_CHECK(dtype == DType::f32, "spectra of {} on a cuda device", name_of(dtype));
    return on_card();
  }
  if (!computes(stream)) return;
  dtype == DType::f64 ? on_host(double{}) : on_host(float{});
}

FramesOf check_frames(const Stream& stream, const SoundFrames& how, const TensorView& sound,
                      const TensorView& frames) {
  CHOIR_CHECK(
      frames.shape.rank() == 3 && sound.shape.rank() == 2 && sound.shape[0] == frames.shape[0],
      "frames {} of sound {}", to_string(frames.shape), to_string(sound.shape));
  CHOIR_CHECK(how.hop >= 1 && how.lead >= 0 && how.unit >= 1 && how.unit % how.hop == 0,
              "hop {}, lead {}, unit {}", how.hop, how.lead, how.unit);
  check_tensor(frames, frames.dtype, frames.count(), "frames");
  const std::int64_t sounds = frames.shape[0], rows = frames.shape[1];
  CHOIR_CHECK(how.lengths != nullptr || sounds == 0, "lengths are missing");
  if (stream.kind() == DeviceKind::cpu)
    for (std::int64_t b = 0; b < sounds; ++b)
      CHOIR_CHECK(how.lengths[b] >= 0 && how.lengths[b] * how.unit <= rows * how.hop,
                  "sound {}: {} units of {} in {} hops of {}", b, how.lengths[b], how.unit, rows,
                  how.hop);
  stream.count(static_cast<double>(frames.count()), as_bytes(frames) + as_bytes(sound));
  return {sounds,   rows,     frames.shape[2], sound.shape[1], how.hop,
          how.lead, how.unit, how.lengths,     nullptr};
}

void check_sound(const SoundFrames& how, const TensorView& sound, const TensorView& frames) {
  check_tensor(sound, frames.dtype, frames.shape[0] * frames.shape[1] * how.hop, "sound");
}

/// Checks spectra and returns the bins of a row, which has real and imaginary parts.
std::int64_t check_spectra(const TensorView& spectra, const TensorView& other, std::int64_t parts) {
  CHOIR_CHECK(spectra.shape.back() % 2 == 0, "spectra {} must have an even width",
              to_string(spectra.shape));
  check_tensor(spectra, spectra.dtype, spectra.count(), "spectra");
  check_tensor(other, spectra.dtype, spectra.count() / 2 * parts, "tensor of spectra");
  return spectra.shape.back() / 2;
}

void check_polar(const Polar& how) {
  CHOIR_CHECK(std::isfinite(how.gain) && std::isfinite(how.offset) && how.most > 0,
              "polar coordinates: gain {}, offset {}, most {}", how.gain, how.offset, how.most);
}

}  // namespace

void split_frames(const Stream& stream, const SoundFrames& how, const TensorView& sound,
                  const TensorView& frames) {
  const FramesOf of = check_frames(stream, how, sound, frames);
  check_sound(how, sound, frames);
  if (frames.count() == 0) return;
  run_real(
      stream, frames.dtype,
      [&] { cuda::split_frames(stream, of, sound.as<float>(), frames.as<float>()); },
      [&](auto t) {
        using T = decltype(t);
        cpu::split_frames<T>(of, sound.as<T>(), frames.as<T>());
      });
}

void split_pcm(const Stream& stream, const SoundFrames& how, const TensorView& pcm,
               const std::int32_t* audio_lengths, const TensorView& frames) {
  FramesOf of = check_frames(stream, how, pcm, frames);
  of.audio_lengths = audio_lengths;
  check_tensor(pcm, DType::u16, pcm.count(), "pcm");
  CHOIR_CHECK(audio_lengths != nullptr || of.sounds == 0, "audio_lengths are missing");
  if (stream.kind() == DeviceKind::cpu)
    for (std::int64_t b = 0; b < of.sounds; ++b)
      CHOIR_CHECK(audio_lengths[b] >= 0 && audio_lengths[b] <= of.width,
                  "sound {}: {} samples of {}", b, audio_lengths[b], of.width);
  if (frames.count() == 0) return;
  const auto* samples = static_cast<const std::int16_t*>(pcm.data);
  run_real(
      stream, frames.dtype, [&] { cuda::split_pcm(stream, of, samples, frames.as<float>()); },
      [&](auto t) { cpu::split_pcm(of, samples, frames.as<decltype(t)>()); });
}

void join_frames(const Stream& stream, const SoundFrames& how, const TensorView& frames,
                 const TensorView& sound, bool accumulate) {
  const FramesOf of = check_frames(stream, how, sound, frames);
  check_sound(how, sound, frames);
  if (sound.count() == 0) return;
  run_real(
      stream, frames.dtype,
      [&] { cuda::join_frames(stream, of, frames.as<float>(), sound.as<float>(), accumulate); },
      [&](auto t) {
        using T = decltype(t);
        cpu::join_frames<T>(of, frames.as<T>(), sound.as<T>(), accumulate);
      });
}

void polar_forward(const Stream& stream, const Polar& how, const TensorView& polar,
                   const TensorView& spectra) {
  check_polar(how);
  const std::int64_t bins = check_spectra(spectra, polar, 2), rows = spectra.shape.rows();
  stream.count(3 * static_cast<double>(spectra.count()), 2 * as_bytes(spectra));
  if (rows == 0) return;
  run_real(
      stream, spectra.dtype,
      [&] { cuda::polar_forward(stream, how, rows, bins, polar.as<float>(), spectra.as<float>()); },
      [&](auto t) {
        using T = decltype(t);
        cpu::polar_forward<T>(how, rows, bins, polar.as<T>(), spectra.as<T>());
      });
}

void polar_backward(const Stream& stream, const Polar& how, const TensorView& polar,
                    const TensorView& d_spectra, const TensorView& d_polar) {
  check_polar(how);
  const std::int64_t bins = check_spectra(d_spectra, polar, 2), rows = d_spectra.shape.rows();
  check_tensor(d_polar, polar.dtype, polar.count(), "d_polar");
  stream.count(5 * static_cast<double>(polar.count()), 3 * as_bytes(polar));
  if (rows == 0) return;
  run_real(
      stream, polar.dtype,
      [&] {
        cuda::polar_backward(stream, how, rows, bins, polar.as<float>(), d_spectra.as<float>(),
                             d_polar.as<float>());
      },
      [&](auto t) {
        using T = decltype(t);
        cpu::polar_backward<T>(how, rows, bins, polar.as<T>(), d_spectra.as<T>(), d_polar.as<T>());
      });
}

void power_forward(const Stream& stream, const TensorView& spectra, const TensorView& powers) {
  const std::int64_t bins = check_spectra(spectra, powers, 1), rows = spectra.shape.rows();
  stream.count(3 * static_cast<double>(powers.count()), as_bytes(spectra) + as_bytes(powers));
  if (rows == 0) return;
  run_real(
      stream, spectra.dtype,
      [&] { cuda::power_forward(stream, rows, bins, spectra.as<float>(), powers.as<float>()); },
      [&](auto t) {
        using T = decltype(t);
        cpu::power_forward<T>(rows, bins, spectra.as<T>(), powers.as<T>());
      });
}

void power_backward(const Stream& stream, const TensorView& spectra, const TensorView& d_powers,
                    const TensorView& d_spectra) {
  const std::int64_t bins = check_spectra(spectra, d_powers, 1), rows = spectra.shape.rows();
  check_tensor(d_spectra, spectra.dtype, spectra.count(), "d_spectra");
  stream.count(2 * static_cast<double>(spectra.count()),
               2 * as_bytes(spectra) + as_bytes(d_powers));
  if (rows == 0) return;
  run_real(
      stream, spectra.dtype,
      [&] {
        cuda::power_backward(stream, rows, bins, spectra.as<float>(), d_powers.as<float>(),
                             d_spectra.as<float>());
      },
      [&](auto t) {
        using T = decltype(t);
        cpu::power_backward<T>(rows, bins, spectra.as<T>(), d_powers.as<T>(), d_spectra.as<T>());
      });
}

void spectral_loss(const Stream& stream, const SpectralLoss& args) {
  const DType dtype = args.predicted.dtype;
  const std::int64_t rows = args.predicted.shape.rows();
  check_tensor(args.predicted, dtype, args.predicted.count(), "predicted");
  check_tensor(args.target, dtype, args.predicted.count(), "target");
  for (const SpectralTerm* term : {&args.logarithms, &args.convergence}) {
    check_optional(term->losses, dtype, rows, "losses");
    CHOIR_CHECK(std::isfinite(term->factor) && std::isfinite(term->scale), "factor {}, scale {}",
                term->factor, term->scale);
  }
  CHOIR_CHECK(std::isfinite(args.guard) && args.guard > 0, "a guard of {}", args.guard);
  CHOIR_CHECK(args.tokens >= 1 && rows % args.tokens == 0, "{} rows of sequences of {}", rows,
              args.tokens);
  stream.count(12 * static_cast<double>(args.predicted.count()),
               (args.write_gradient ? 2 : 1) * as_bytes(args.predicted) + as_bytes(args.target));
  if (rows == 0) return;
  run_real(
      stream, dtype, [&] { cuda::spectral_loss(stream, args); },
      [&](auto t) { cpu::spectral_loss<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

constexpr std::int64_t kPolarCost = 32;  // work of exp, sine and cosine in units of a copy

/// Sets frame values to value(sample) where valid and to 0 elsewhere, for all frames.
template <class T, class Value>
void for_frames(const FramesOf& of, T* frames, const Value& value) {
  parallel_ranges(of.sounds * of.rows, of.frame, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t b = i / of.rows, begin = i % of.rows * of.hop - of.lead;
      const std::int64_t count = of.lengths[b] * of.unit;
      const std::int64_t end =
          of.audio_lengths == nullptr ? count : std::min<std::int64_t>(count, of.audio_lengths[b]);
      T* to = frames + i * of.frame;
      const std::int64_t low = std::clamp<std::int64_t>(-begin, 0, of.frame);
      const std::int64_t high =
          begin + of.lead < count ? std::clamp<std::int64_t>(end - begin, low, of.frame) : low;
      std::fill(to, to + low, T(0));
      for (std::int64_t n = low; n < high; ++n) to[n] = value(b * of.width + begin + n);
      std::fill(to + high, to + of.frame, T(0));
    }
  });
}

/// The factor of the gradient of a term.
double step_of(const ops::SpectralTerm& term) {
  if (term.losses.empty()) return 0;
  return term.factor * term.scale * (term.device_scale ? *term.device_scale : 1);
}

}  // namespace

template <class T>
void split_frames(const FramesOf& of, const T* sound, T* frames) {
  for_frames(of, frames, [&](std::int64_t at) { return sound[at]; });
}

template <class T>
void split_pcm(const FramesOf& of, const std::int16_t* pcm, T* frames) {
  for_frames(of, frames, [&](std::int64_t at) { return static_cast<T>(pcm[at]) * T(0x1p-15); });
}

template <class T>
void join_frames(const FramesOf& of, const T* frames, T* sound, bool accumulate) {
  // A part of a sound is a hop: the frames that reach into it are added in their order.
  parallel_ranges(of.sounds * of.rows, of.frame, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t b = i / of.rows, begin = i % of.rows * of.hop;
      const std::int64_t rows = of.lengths[b] * of.unit / of.hop;
      T* to = sound + b * of.width + begin;
      if (!accumulate) std::fill(to, to + of.hop, T(0));
      if (i % of.rows >= rows) continue;
      // Frame r covers samples r hop - lead to r hop - lead + frame.
      const std::int64_t from = std::max<std::int64_t>(0, (begin + of.lead - of.frame) / of.hop);
      for (std::int64_t r = from; r < rows && r * of.hop - of.lead < begin + of.hop; ++r) {
        const std::int64_t shift = begin - r * of.hop + of.lead;  // index of sample 0 in the frame
        const T* frame = frames + (b * of.rows + r) * of.frame + shift;
        const std::int64_t low = std::clamp<std::int64_t>(-shift, 0, of.hop);
        const std::int64_t high = std::clamp<std::int64_t>(of.frame - shift, low, of.hop);
        for (std::int64_t s = low; s < high; ++s) to[s] += frame[s];
      }
    }
  });
}

template <class T>
void polar_forward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const T* polar,
                   T* spectra) {
  const T gain = static_cast<T>(how.gain), offset = static_cast<T>(how.offset),
          most = static_cast<T>(how.most);
  parallel_ranges(rows, bins * kPolarCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t k = 0; k < bins; ++k) {
        const std::int64_t re = r * 2 * bins + k, im = re + bins;
        const T free = std::exp(gain * polar[re] + offset);
        const T magnitude = free > most ? most : free;  // NaN is preserved
        spectra[re] = magnitude * std::cos(polar[im]);
        spectra[im] = magnitude * std::sin(polar[im]);
      }
  });
}

template <class T>
void polar_backward(const ops::Polar& how, std::int64_t rows, std::int64_t bins, const T* polar,
                    const T* d_spectra, T* d_polar) {
  const T gain = static_cast<T>(how.gain), offset = static_cast<T>(how.offset),
          most = static_cast<T>(how.most);
  parallel_ranges(rows, bins * kPolarCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t k = 0; k < bins; ++k) {
        const std::int64_t re = r * 2 * bins + k, im = re + bins;
        const T free = std::exp(gain * polar[re] + offset), magnitude = free > most ? most : free;
        const T c = std::cos(polar[im]), s = std::sin(polar[im]);
        const T d_re = d_spectra[re], d_im = d_spectra[im];
        d_polar[re] = free < most ? gain * magnitude * (d_re * c + d_im * s) : T(0);
        d_polar[im] = magnitude * (d_im * c - d_re * s);
      }
  });
}

template <class T>
void power_forward(std::int64_t rows, std::int64_t bins, const T* spectra, T* powers) {
  parallel_ranges(rows, 2 * bins, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *re = spectra + r * 2 * bins, *im = re + bins;
      for_vectors<T>(0, bins, [&](std::int64_t k, auto access) {
        const Vec<T> a = access.load(re + k), b = access.load(im + k);
        access.store(powers + r * bins + k, a * a + b * b);
      });
    }
  });
}

template <class T>
void power_backward(std::int64_t rows, std::int64_t bins, const T* spectra, const T* d_powers,
                    T* d_spectra) {
  parallel_ranges(rows, 2 * bins, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (const std::int64_t part : {std::int64_t{0}, bins}) {
        const T* x = spectra + r * 2 * bins + part;
        T* d = d_spectra + r * 2 * bins + part;
        for_vectors<T>(0, bins, [&](std::int64_t k, auto access) {
          access.store(d + k, 2 * access.load(x + k) * access.load(d_powers + r * bins + k));
        });
      }
  });
}

template <class T>
void spectral_loss(const ops::SpectralLoss& args) {
  const std::int64_t width = args.predicted.shape.back();
  const T guard = static_cast<T>(args.guard);
  const double log_step = step_of(args.logarithms), convergence_step = step_of(args.convergence);
  const auto row_loss = [&](std::int64_t r) {
    T* predicted = args.predicted.as<T>() + r * width;
    const T* target = args.target.as<T>() + r * width;
    Vec<T> logarithms{}, square{}, length{};
    // Lanes behind the end hold 1 on both sides, so they contribute no difference.
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      const Vec<T> p = access.load(predicted + c, T(1)) + guard;
      const Vec<T> t = access.load(target + c, T(1)) + guard;
      const Vec<T> difference = sqrt(p) - sqrt(t);
      logarithms += abs(log(p) - log(t));
      square += difference * difference;
      length += access.load(target + c);
    });
    const double distance = std::sqrt(static_cast<double>(sum_of_lanes(square)));
    const double reference = std::sqrt(static_cast<double>(sum_of_lanes(length)) +
                                       args.guard * static_cast<double>(width));
    const auto add = [&](const ops::SpectralTerm& term, double loss) {
      if (!term.losses.empty()) term.losses.as<T>()[r] += static_cast<T>(term.factor * loss);
    };
    add(args.logarithms, static_cast<double>(sum_of_lanes(logarithms)));
    add(args.convergence, distance / reference);
    if (!args.write_gradient) return;
    const Vec<T> zero{};
    const T of_log = static_cast<T>(log_step);
    const T of_root =
        static_cast<T>(distance > 0 ? convergence_step / (2 * distance * reference) : 0);
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      const Vec<T> p = access.load(predicted + c, T(1)) + guard;
      const Vec<T> t = access.load(target + c, T(1)) + guard;
      const Vec<T> sign = p > t ? zero + of_log : p < t ? zero - of_log : zero;
      access.store(predicted + c, sign / p + of_root * (1 - sqrt(t / p)));
    });
  };
  parallel_ranges(
      args.predicted.shape.rows(), 8 * width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
          const bool counts =
              args.lengths == nullptr || r % args.tokens < args.lengths[r / args.tokens];
          if (counts)
            row_loss(r);
          else if (args.write_gradient)
            std::fill_n(args.predicted.as<T>() + r * width, width, T(0));
        }
      });
}

#define CHOIR_INSTANTIATE(T)                                                                   \
  template void split_frames<T>(const FramesOf&, const T*, T*);                                \
  template void split_pcm<T>(const FramesOf&, const std::int16_t*, T*);                        \
  template void join_frames<T>(const FramesOf&, const T*, T*, bool);                           \
  template void polar_forward<T>(const ops::Polar&, std::int64_t, std::int64_t, const T*, T*); \
  template void polar_backward<T>(const ops::Polar&, std::int64_t, std::int64_t, const T*,     \
                                  const T*, T*);                                               \
  template void power_forward<T>(std::int64_t, std::int64_t, const T*, T*);                    \
  template void power_backward<T>(std::int64_t, std::int64_t, const T*, const T*, T*);         \
  template void spectral_loss<T>(const ops::SpectralLoss&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

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
