#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/waveform/waveform.hpp"

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
