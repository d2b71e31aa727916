#include "kernels/waveform/waveform.hpp"

#include <cmath>

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
