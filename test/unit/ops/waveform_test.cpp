#include <array>

#include "choir/core/error.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/waveform_case.hpp"

namespace choir::test {
namespace {

constexpr DType kRealTypes[] = {DType::f64, DType::f32};

TEST(SoundFrames, MatchTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kRealTypes) {
    FramesCase{dtype, 4, 3, 2, 5, 16, 6}.check(cpu);
    FramesCase{dtype, 3, 4, 1, 8, 8, 0}.check(cpu);
    FramesCase{dtype, 2, 2, 3, 7, 5, 3}.check(cpu);        // with gaps
    FramesCase{dtype, 2, 5, 8, 160, 512, 176}.check(cpu);  // by several threads
  }
}

// A sample of sound is in every frame that reaches it: <split x, y> = <x, join y>.
TEST(SoundFrames, SplittingAndJoiningAreTransposed) {
  CpuBench cpu;
  const HostTensor sound = HostTensor::normal(DType::f64, {2, 40}, 1);
  const HostTensor frames = HostTensor::normal(DType::f64, {2, 8, 12}, 2);
  HostTensor split(DType::f64, {2, 8, 12}), joined(DType::f64, {2, 40}), lengths(DType::i32, {2});
  lengths.set(0, 4), lengths.set(1, 3);
  const ops::SoundFrames how{
      .hop = 5, .lead = 4, .unit = 10, .lengths = lengths.as<std::int32_t>()};
  ops::split_frames(cpu.stream, how, sound, split);
  ops::join_frames(cpu.stream, how, frames, joined);
  EXPECT_NEAR(dot(split, frames), dot(sound, joined), 1e-13);
  EXPECT_EQ(joined[40 + 30], 0) << "behind what counts";
  EXPECT_NE(joined[40 + 29], 0);
}

TEST(SoundFrames, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  HostTensor sound = HostTensor::filled(DType::f64, {1, 40}, 0), frames(DType::f64, {1, 8, 12});
  HostTensor lengths = HostTensor::filled(DType::i32, {1}, 5);
  const auto split = [&](std::int64_t hop, std::int64_t unit) {
    ops::split_frames(cpu.stream,
                      {.hop = hop, .lead = 4, .unit = unit, .lengths = lengths.as<std::int32_t>()},
                      sound, frames);
  };
  EXPECT_THROW(split(5, 10), Error) << "five units of ten in forty samples";
  lengths.set(0, 4);
  split(5, 10);
  EXPECT_THROW(split(5, 8), Error) << "a unit that is no whole hops";
  EXPECT_THROW(split(4, 8), Error) << "sound of more samples than hops";
}

TEST(Spectra, MatchTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kRealTypes)
    for (const std::int64_t bins : {1, 9, 33, 257}) SpectraCase{dtype, 7, bins}.check(cpu);
}

TEST(Spectra, GradientsAreThoseOfDifferences) {
  CpuBench cpu;
  const ops::Polar how{.gain = 1.5, .offset = -0.5, .most = 3};
  HostTensor polar = HostTensor::normal(DType::f64, {3, 10}, 1);
  const HostTensor weights = HostTensor::normal(DType::f64, {3, 5}, 2);
  HostTensor spectra(DType::f64, {3, 10}), powers(DType::f64, {3, 5}), d_polar = spectra;
  const HostTensor of_parts = HostTensor::normal(DType::f64, {3, 10}, 3);
  const auto loss = [&] {
    ops::polar_forward(cpu.stream, how, polar, spectra);
    ops::power_forward(cpu.stream, spectra, powers);
    return dot(powers, weights) + dot(spectra, of_parts);
  };
  loss();
  HostTensor d_spectra(DType::f64, {3, 10});
  ops::power_backward(cpu.stream, spectra, weights, d_spectra);
  for (std::int64_t i = 0; i < 30; ++i) d_spectra.set(i, d_spectra[i] + of_parts[i]);
  ops::polar_backward(cpu.stream, how, polar, d_spectra, d_polar);
  expect_gradient(d_polar, polar, loss, "polar coordinates", 3e-8);
}

TEST(SpectralLoss, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kRealTypes)
    for (const std::int64_t width : {1, 5, 64, 641})
      SpectralLossCase{dtype, 4, 7, width}.check(cpu);
  SpectralLossCase{DType::f32, 3, 40, 640}.check(cpu);  // by several threads
}

// Powers of 4 and 9 against 1 and 1: ln 4 + ln 9, and |(1, 2)| / |(1, 1)|.
TEST(SpectralLoss, IsWhatItsFormulaSays) {
  CpuBench cpu;
  HostTensor predicted(DType::f64, {1, 2}), logs = HostTensor::filled(DType::f64, {1}, 0);
  HostTensor convergence = logs, target = HostTensor::filled(DType::f64, {1, 2}, 1 - 1e-9);
  predicted.set(0, 4 - 1e-9), predicted.set(1, 9 - 1e-9);
  ops::spectral_loss(cpu.stream, {.predicted = predicted,
                                  .target = target,
                                  .guard = 1e-9,
                                  .logarithms = {.losses = logs},
                                  .convergence = {.losses = convergence},
                                  .write_gradient = false});
  EXPECT_NEAR(logs[0], std::log(36.0), 1e-14);
  EXPECT_NEAR(convergence[0], std::sqrt(5.0 / 2), 1e-14);
}

TEST(SpectralLoss, ItsGradientIsThatOfItsSum) {
  CpuBench cpu;
  HostTensor x = SpectralLossCase::powers(DType::f64, {3, 5}, 1);
  const HostTensor target = SpectralLossCase::powers(DType::f64, {3, 5}, 2);
  HostTensor lengths = HostTensor::filled(DType::i32, {1}, 2);
  const auto call = [&](const HostTensor& predicted, bool write) {
    HostTensor logs = HostTensor::filled(DType::f64, {3}, 0), convergence = logs;
    ops::spectral_loss(cpu.stream, {.predicted = predicted,
                                    .target = target,
                                    .lengths = lengths.as<std::int32_t>(),
                                    .tokens = 3,
                                    .guard = 0.1,
                                    .logarithms = {.losses = logs, .factor = 0.2, .scale = 0.5},
                                    .convergence = {.losses = convergence, .factor = 2},
                                    .write_gradient = write});
    EXPECT_EQ(logs[2], 0);
    return 0.5 * (logs[0] + logs[1]) + convergence[0] + convergence[1];
  };
  HostTensor d_x = x;
  call(d_x, true);
  expect_gradient(
      d_x, x, [&] { return call(x, false); }, "spectral distances", 3e-8);
}

}  // namespace
}  // namespace choir::test
