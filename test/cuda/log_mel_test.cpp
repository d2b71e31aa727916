#include "test/cuda/cuda_fixture.hpp"
#include "test/support/log_mel_case.hpp"

namespace choir::test {
namespace {

class CudaLogMel : public CudaTest {};

TEST_F(CudaLogMel, EqualsLibrosaWithTheConventionsOfNemo) {
  ops::MelOptions dithered;
  dithered.dither = 0.01;
  const auto compute = [&](const ops::MelOptions& options) {
    return device_log_mel(device(), DType::f32, options,
                          Utterances({golden_signal(5000)}, options.hop, 0, {kGoldenSample}));
  };
  expect_golden(compute({}), all_of(kLogMel16), 1e-5);
  expect_golden(compute(dithered), all_of(kDithered16), 1e-5);
  expect_golden(compute(at_8_khz()), all_of(kLogMel8), 1e-5);
  expect_golden(compute(wide_frames()), all_of(kLogMelWide), 1e-5);
}

TEST_F(CudaLogMel, SpeechIsWithinATenThousandth) {
  for (const double decibels : {35.0, 60.0, 90.0}) {
    SCOPED_TRACE(fmt::format("noise {} dB below the voice", decibels));
    check_log_mel(device(), DType::f32, {},
                  Utterances({speech_like(8000, 16000, 1, decibels)}, 160), kLogMelReached);
    check_log_mel(device(), DType::f32, at_8_khz(),
                  Utterances({speech_like(4000, 8000, 3, decibels)}, 80), kLogMelReached);
  }
}

TEST_F(CudaLogMel, WeakBandsBesideLoudTonesAreWithinATenThousandth) {
  for (const double deviation : {1.0, 8.0}) {
    SCOPED_TRACE(fmt::format("noise of {} units", deviation));
    check_log_mel(device(), DType::f32, {},
                  Utterances({loud_tones(8000, 16000, 1, deviation)}, 160), kLogMelReached);
    check_log_mel(device(), DType::f32, wide_frames(),
                  Utterances({loud_tones(4000, 16000, 2, deviation)}, 320), kLogMelReached);
    check_log_mel(device(), DType::f32, at_8_khz(),
                  Utterances({loud_tones(4000, 8000, 3, deviation)}, 80), kLogMelReached);
  }
}

TEST_F(CudaLogMel, StaysWithinTheBoundOnAnySignal) {
  std::vector<std::int16_t> silence(3000), square;
  for (int i = 0; i < 3000; ++i) square.push_back(i / 40 % 2 == 0 ? 32767 : -32768);
  for (ops::MelOptions options : {ops::MelOptions{}, at_8_khz(), wide_frames()})
    for (const double dither : {0.0, 1e-3}) {
      options.dither = dither;
      check_log_mel(device(), DType::f32, options,
                    Utterances({silence, square, white_noise(2345, 2, 9000)}, options.hop));
    }
}

TEST_F(CudaLogMel, OddSizes) {
  for (const std::int64_t window : {1, 31, 256})
    for (const std::int64_t hop : {1, 37, 256})
      for (const double dither : {0.0, 1e-2}) {
        SCOPED_TRACE(fmt::format("window {} hop {} dither {}", window, hop, dither));
        const ops::MelOptions options{.sample_rate = 11025,
                                      .window = window,
                                      .hop = hop,
                                      .fft = 256,
                                      .mels = 13,
                                      .dither = dither};
        const auto samples = std::min<std::int64_t>(hop * 19 + 5, 2600);
        check_log_mel(device(), DType::f32, options,
                      Utterances({white_noise(samples, 3, 2000)}, hop));
      }
  check_log_mel(device(), DType::f32, {.window = 1024, .hop = 1024, .fft = 1024, .mels = 33},
                Utterances({white_noise(9300, 3, 2000)}, 1024));
}

TEST_F(CudaLogMel, ShortAndEmptyUtterancesGiveTheFramesThatCountAndZeros) {
  const std::vector<std::int16_t> wave = white_noise(2000, 5, 3000);
  std::vector<std::vector<std::int16_t>> waves;
  for (const std::int64_t n : {0, 1, 159, 160, 161, 1400, 2000})
    waves.emplace_back(wave.begin(), wave.begin() + n);
  check_log_mel(device(), DType::f32, {}, Utterances(waves, 160, 33), INFINITY, 21);
}

TEST_F(CudaLogMel, AnUtteranceHasTheSameBitsInEveryBatchAndPadding) {
  ops::MelOptions dithered;
  dithered.dither = 1e-5;
  const std::vector<std::int16_t> wave = speech_like(3777, 16000, 1),
                                  other = speech_like(5000, 16000, 2);
  for (const ops::MelOptions& options : {ops::MelOptions{}, dithered}) {
    const HostTensor alone =
        device_log_mel(device(), DType::f32, options, Utterances({wave}, 160, 0, {42}));
    const HostTensor all = device_log_mel(
        device(), DType::f32, options, Utterances({other, wave, {}}, 160, 1234, {41, 42, 43}), 37);
    EXPECT_EQ(std::memcmp(all.as<float>() + 37 * 80, alone.data(), alone.bytes()), 0);
  }
}

TEST_F(CudaLogMel, FramesTsan) {
  check_log_mel(device(), DType::f32, {.dither = 1e-3},
                Utterances({white_noise(1700, 2, 9000)}, 160), INFINITY, 12);
}

TEST_F(CudaLogMel, RefusesDoubles) {
  EXPECT_THROW(device_log_mel(device(), DType::f64, {}, Utterances({golden_signal(500)}, 160)),
               Error);
}

}  // namespace
}  // namespace choir::test
