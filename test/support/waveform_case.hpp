#pragma once
// Spectra and sound against their references, on any device.
#include <cmath>

#include "kernels/waveform/waveform.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// Checks |actual - exact| <= allowed for each element.
inline void expect_within(const TensorView& actual, const TensorView& exact,
                          const std::vector<double>& allowed, const char* what) {
  for (std::int64_t i = 0; i < actual.count(); ++i)
    ASSERT_LE(std::fabs(element_as_double(actual, i) - element_as_double(exact, i)),
              allowed[static_cast<std::size_t>(i)])
        << what << " " << i;
}

struct FramesCase {
  DType dtype;
  std::int64_t sounds, units, hops_per_unit, hop, frame, lead;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} sounds of {} x {} hops of {}, frames of {} led by {}",
                             name_of(dtype), sounds, units, hops_per_unit, hop, frame, lead));
    const std::int64_t rows = units * hops_per_unit, width = rows * hop;
    HostTensor sound = HostTensor::normal(dtype, {sounds, width}, 1);
    HostTensor of_frames = HostTensor::normal(dtype, {sounds, rows, frame}, 2);
    HostTensor lengths(DType::i32, {sounds}), audio_lengths(DType::i32, {sounds});
    HostTensor pcm(DType::u16, {sounds, width - 3});
    for (std::int64_t i = 0; i < pcm.count(); ++i)
      static_cast<std::int16_t*>(pcm.data())[i] =
          static_cast<std::int16_t>(i * 7919 % 65536 - 32768);
    for (std::int64_t b = 0; b < sounds; ++b) {
      const std::int64_t length = b == 0 ? units : (b * 3) % (units + 1);
      lengths.set(b, static_cast<double>(length));
      audio_lengths.set(
          b, static_cast<double>(std::max<std::int64_t>(0, length * hops_per_unit * hop - 5)));
      // Samples that do not count may contain anything.
      if (length == units) continue;
      sound.set((b + 1) * width - 1, NAN);
      of_frames.set(((b + 1) * rows - 1) * frame, NAN);
    }
    HostTensor split(dtype, {sounds, rows, frame}), heard = split, joined(dtype, {sounds, width});
    HostTensor more = HostTensor::normal(dtype, {sounds, width}, 3);
    const HostTensor before = more.to(DType::f64);
    Mirror mirror(device);
    const Stream stream(device);
    const ops::SoundFrames how{.hop = hop,
                               .lead = lead,
                               .unit = hops_per_unit * hop,
                               .lengths = mirror.in(lengths).as<std::int32_t>()};
    const TensorView frames = mirror.in(of_frames);
    ops::split_frames(stream, how, mirror.in(sound), mirror.io(split));
    ops::split_pcm(stream, how, mirror.in(pcm), mirror.in(audio_lengths).as<std::int32_t>(),
                   mirror.io(heard));
    ops::join_frames(stream, how, frames, mirror.io(joined));
    ops::join_frames(stream, how, frames, mirror.io(more), true);
    mirror.fetch();

    FramesOf of{sounds, rows, frame, width, hop, lead, how.unit, lengths.as<std::int32_t>(),
                nullptr};
    HostTensor exact(DType::f64, {sounds, rows, frame}), sums(DType::f64, {sounds, width});
    ref::split_frames(of, sound.to(DType::f64), exact.as<double>());
    expect_close(split, exact, 0, 0, "frames");
    // Sums of this many terms of at most 5; each addition is rounded.
    const auto terms = static_cast<double>((frame + hop - 1) / hop + 1);
    const double rounding = terms * terms * 5 * unit_roundoff(dtype);
    ref::join_frames(of, of_frames.to(DType::f64).as<double>(), sums.as<double>(), false);
    expect_close(joined, sums, 0, rounding, "sound");
    HostTensor added = before;
    ref::join_frames(of, of_frames.to(DType::f64).as<double>(), added.as<double>(), true);
    expect_close(more, added, 0, rounding, "sound that is added");
    of.width = width - 3, of.audio_lengths = audio_lengths.as<std::int32_t>();
    ref::split_frames(of, pcm, exact.as<double>());
    expect_close(heard, exact, 0, 0, "frames of PCM");
  }
};

struct SpectraCase {
  DType dtype;
  std::int64_t rows, bins;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} spectra of {} bins", name_of(dtype), rows, bins));
    const ops::Polar how{.gain = 1.5, .offset = -1, .most = 4};
    const Shape both{rows, 2 * bins}, one{rows, bins};
    HostTensor polar = HostTensor::normal(dtype, both, 1, 2),
               d = HostTensor::normal(dtype, both, 2);
    const HostTensor d_powers = HostTensor::normal(dtype, one, 3);
    HostTensor spectra(dtype, both), d_polar(dtype, both), powers(dtype, one),
        d_spectra(dtype, both);
    // A magnitude at the cut may be cut by one implementation only.
    for (std::int64_t i = 0; i < polar.count(); ++i)
      if (std::fabs(1.5 * polar[i] - 1 - std::log(4.0)) < 1e-4) polar.set(i, 0);
    Mirror mirror(device);
    const Stream stream(device);
    const TensorView made = mirror.io(spectra);
    ops::polar_forward(stream, how, mirror.in(polar), made);
    ops::polar_backward(stream, how, mirror.in(polar), mirror.in(d), mirror.io(d_polar));
    ops::power_forward(stream, made, mirror.io(powers));
    ops::power_backward(stream, made, mirror.in(d_powers), mirror.io(d_spectra));
    mirror.fetch();

    HostTensor exact(DType::f64, both), d_exact = exact, squares(DType::f64, one);
    const HostTensor polar64 = polar.to(DType::f64), d64 = d.to(DType::f64);
    ref::polar_forward(how, rows, bins, polar64.as<double>(), exact.as<double>());
    ref::polar_backward(how, rows, bins, polar64.as<double>(), d64.as<double>(),
                        d_exact.as<double>());
    // The exponent is rounded twice and its power has an error of 2 ulp; a phase p is right to |p|
    // 2 u + 4 u (kernels/waveform/waveform.cu), and products follow. The reference rounds as f64
    // does.
    const double u = 2 * unit_roundoff(dtype);
    std::vector<double> allowed(static_cast<std::size_t>(polar.count())), of_gradient = allowed;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < bins; ++k) {
        const std::int64_t re = r * 2 * bins + k, im = re + bins;
        const double exponent = how.gain * polar64[re] + how.offset;
        const double error = 2 * std::fabs(exponent) + 2 * std::fabs(polar64[im]) + 16;
        const double magnitude = std::min(how.most, std::exp(exponent));
        for (const std::int64_t i : {re, im}) {
          const auto place = static_cast<std::size_t>(i);
          allowed[place] = magnitude * error * u;
          of_gradient[place] =
              how.gain * magnitude * (std::fabs(d64[re]) + std::fabs(d64[im])) * error * u;
        }
      }
    expect_within(spectra, exact, allowed, "spectra");
    expect_within(d_polar, d_exact, of_gradient, "gradient of polar coordinates");
    const HostTensor spectra64 = spectra.to(DType::f64);
    ref::power_forward(rows, bins, spectra64.as<double>(), squares.as<double>());
    ref::power_backward(rows, bins, spectra64.as<double>(), d_powers.to(DType::f64).as<double>(),
                        d_exact.as<double>());
    expect_close(powers, squares, 2 * u, 0, "powers");
    expect_close(d_spectra, d_exact, u, 0, "gradient of spectra");
  }
};

struct SpectralLossCase {
  DType dtype;
  std::int64_t sequences, tokens, width;

  static HostTensor powers(DType dtype, const Shape& shape, std::uint64_t seed) {
    HostTensor x = HostTensor::normal(dtype, shape, seed, 2);
    for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::exp(x[i]));
    return x;
  }

  void check(Device& device) const {
    SCOPED_TRACE(
        fmt::format("{} {} sequences of {} rows of {}", name_of(dtype), sequences, tokens, width));
    const std::int64_t rows = sequences * tokens;
    HostTensor predicted = powers(dtype, {rows, width}, 1),
               target = powers(dtype, {rows, width}, 2);
    target.set(width / 2, predicted[width / 2]);  // no difference, no gradient
    HostTensor lengths(DType::i32, {sequences});
    for (std::int64_t b = 0; b < sequences; ++b) {
      lengths.set(b, static_cast<double>(b == 0 ? tokens : (b * 5) % (tokens + 1)));
      if (lengths[b] < static_cast<double>(tokens))
        predicted.set(((b + 1) * tokens - 1) * width, NAN);  // may be anything
    }
    const HostTensor weights = HostTensor::filled(DType::f64, {1}, 0.5);
    HostTensor gradient = predicted, logs = HostTensor::filled(dtype, {rows}, 1);
    HostTensor convergence = HostTensor::filled(dtype, {rows}, 2);
    Mirror mirror(device);
    const Stream stream(device);
    ops::SpectralLoss args{.predicted = mirror.io(gradient),
                           .target = mirror.in(target),
                           .lengths = mirror.in(lengths).as<std::int32_t>(),
                           .tokens = tokens,
                           .guard = 1e-3,
                           .logarithms = {.losses = mirror.io(logs), .factor = 0.5, .scale = 0.125},
                           .convergence = {.losses = mirror.io(convergence),
                                           .factor = 3,
                                           .scale = 0.25,
                                           .device_scale = mirror.in(weights).as<double>()}};
    ops::spectral_loss(stream, args);
    mirror.fetch();

    HostTensor exact = predicted.to(DType::f64);
    const HostTensor target64 = target.to(DType::f64);
    HostTensor log_exact = HostTensor::filled(DType::f64, {rows}, 1);
    HostTensor convergence_exact = HostTensor::filled(DType::f64, {rows}, 2);
    args.predicted = exact, args.target = target64, args.lengths = lengths.as<std::int32_t>();
    args.logarithms.losses = log_exact, args.convergence.losses = convergence_exact;
    args.convergence.device_scale = weights.as<double>();
    ref::spectral_loss(args);
    // Sums of `width` terms; logarithms up to 10 have errors of 2 ulp, roots the rounding of their
    // arguments. A gradient has the errors of the distance, and 1 - sqrt(t / p) those of its terms.
    const double u = 2 * unit_roundoff(dtype), sums = static_cast<double>(width) * u;
    expect_close(logs, log_exact, sums, static_cast<double>(width) * 45 * u, "logarithms");
    expect_close(convergence, convergence_exact, sums + 8 * u, 24 * u, "convergence");
    std::vector<double> allowed(static_cast<std::size_t>(exact.count()));
    for (std::int64_t i = 0; i < exact.count(); ++i) {
      const double ratio = std::sqrt((target64[i] + 1e-3) / (predicted[i] + 1e-3));
      allowed[static_cast<std::size_t>(i)] =
          std::isnan(ratio) ? 0
                            : (sums + 8 * u) * std::fabs(exact[i]) +
                                  8 * u * (0.0625 / (predicted[i] + 1e-3) + 1 + ratio);
    }
    expect_within(gradient, exact, allowed, "gradient");
  }
};

}  // namespace choir::test
