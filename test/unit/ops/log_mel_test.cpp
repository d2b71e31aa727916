#include <omp.h>

#include "test/support/log_mel_case.hpp"

namespace choir::test {
namespace {

TEST(LogMel, EqualsLibrosaWithTheConventionsOfNemo) {
  CpuDevice device;
  ops::MelOptions dithered;
  dithered.dither = 0.01;
  for (const DType dtype : kFeatureTypes) {
    const double tolerance = dtype == DType::f64 ? 1e-11 : 1e-5;
    const auto compute = [&](const ops::MelOptions& options) {
      return device_log_mel(device, dtype, options,
                            Utterances({golden_signal(5000)}, options.hop, 0, {kGoldenSample}));
    };
    expect_golden(compute({}), all_of(kLogMel16), tolerance);
    expect_golden(compute(dithered), all_of(kDithered16), tolerance);
    expect_golden(compute(at_8_khz()), all_of(kLogMel8), tolerance);
    expect_golden(compute(wide_frames()), all_of(kLogMelWide), tolerance);
  }
}

TEST(LogMel, SpeechIsWithinATenThousandth) {
  CpuDevice device;
  for (const double decibels : {35.0, 40.0, 60.0, 90.0}) {
    SCOPED_TRACE(fmt::format("noise {} dB below the voice", decibels));
    const Utterances wide(
        {speech_like(16000, 16000, 1, decibels), speech_like(9000, 16000, 2, decibels)}, 160);
    const Utterances narrow(
        {speech_like(8000, 8000, 3, decibels), speech_like(4001, 8000, 4, decibels)}, 80);
    check_log_mel(device, DType::f32, {}, wide, kLogMelReached);
    check_log_mel(device, DType::f32, at_8_khz(), narrow, kLogMelReached);
    check_log_mel(device, DType::f64, {}, wide, 1e-10);
  }
}

TEST(LogMel, StaysWithinTheBoundOnAnySignal) {
  CpuDevice device;
  std::vector<std::int16_t> silence(4000), tone, square, step(4000, 0);
  for (int i = 0; i < 4000; ++i) {
    tone.push_back(static_cast<std::int16_t>(std::lround(32767 * std::sin(0.3 * i))));
    square.push_back(i / 40 % 2 == 0 ? 32767 : -32768);
  }
  for (int i = 2000; i < 4000; ++i) step[static_cast<std::size_t>(i)] = 1;
  for (const DType dtype : kFeatureTypes)
    for (const ops::MelOptions& options : {ops::MelOptions{}, at_8_khz(), wide_frames()})
      check_log_mel(device, dtype, options,
                    Utterances({silence, tone, square, step, white_noise(4000, 1, 3),
                                white_noise(3210, 2, 9000)},
                               options.hop));
}

TEST(LogMel, OddSizes) {
  CpuDevice device;
  for (const DType dtype : kFeatureTypes)
    for (const std::int64_t window : {1, 2, 15, 31, 255, 256})
      for (const std::int64_t hop : {1, 37, 256}) {
        SCOPED_TRACE(fmt::format("{} window {} hop {}", name_of(dtype), window, hop));
        const ops::MelOptions options{
            .sample_rate = 11025, .window = window, .hop = hop, .fft = 256, .mels = 13};
        const auto samples = std::min<std::int64_t>(hop * 37 + 5, 3000);
        check_log_mel(device, dtype, options, Utterances({white_noise(samples, 3, 2000)}, hop));
      }
  for (const DType dtype : kFeatureTypes)
    check_log_mel(device, dtype, {.preemphasis = 0, .guard = 1e-6, .mean = -7, .deviation = 3},
                  Utterances({white_noise(3000, 3, 2000), white_noise(3000, 4, 2)}, 160));
  for (const std::int64_t mels : {1, 16, 17, 100})
    check_log_mel(device, DType::f32, {.mels = mels, .preemphasis = 0},
                  Utterances({white_noise(3000, 3, 2000)}, 160));
}

TEST(LogMel, ShortAndEmptyUtterancesGiveTheFramesThatCountAndZeros) {
  CpuDevice device;
  const std::vector<std::int16_t> wave = white_noise(4000, 5, 3000);
  std::vector<std::vector<std::int16_t>> waves;
  for (const std::int64_t n : {0, 1, 159, 160, 161, 200, 399, 400, 1600, 4000})
    waves.emplace_back(wave.begin(), wave.begin() + n);
  const Utterances u(waves, 160, 33);
  EXPECT_EQ(u.frames[2], 0);
  EXPECT_EQ(u.frames[3], 1);
  for (const DType dtype : kFeatureTypes) check_log_mel(device, dtype, {}, u, INFINITY, 31);
  const HostTensor none = device_log_mel(device, DType::f32, {}, Utterances({{}}, 160));
  EXPECT_EQ(none.count(), 0);
}

TEST(LogMel, AnUtteranceHasTheSameBitsInEveryBatchPaddingAndThreadCount) {
  CpuDevice device;
  ops::MelOptions dithered;
  dithered.dither = 1e-5;
  const std::vector<std::int16_t> wave = speech_like(7777, 16000, 1),
                                  other = speech_like(12000, 16000, 2);
  const int threads = omp_get_max_threads();
  for (const ops::MelOptions& options : {ops::MelOptions{}, dithered})
    for (const DType dtype : kFeatureTypes) {
      const HostTensor alone =
          device_log_mel(device, dtype, options, Utterances({wave}, 160, 0, {42}));
      const Utterances batch({other, wave, {}, wave}, 160, 1234, {41, 42, 43, 42});
      for (const int n : {1, 3}) {
        omp_set_num_threads(n);
        const HostTensor all = device_log_mel(device, dtype, options, batch, 83);
        const std::size_t row = static_cast<std::size_t>(83 * 80) * size_of(dtype);
        for (const std::size_t b : {1, 3})
          EXPECT_EQ(
              std::memcmp(static_cast<char*>(all.data()) + b * row, alone.data(), alone.bytes()), 0)
              << "row " << b << ", " << n << " threads";
      }
      omp_set_num_threads(threads);
    }
}

TEST(LogMel, DitherIsWhiteAndOfItsDeviation) {
  CpuDevice device;
  constexpr double kFrames = 1200, kDeviation = 0.05;
  // Adjacent frames are independent. A filter's power is a sum of powers of normal numbers: its
  // deviation is at most its mean.
  const ops::MelOptions options{.hop = 400, .preemphasis = 0, .dither = kDeviation};
  const Utterances silence({std::vector<std::int16_t>(static_cast<std::size_t>(kFrames) * 400)},
                           400);
  const HostTensor out = device_log_mel(device, DType::f32, options, silence);
  const std::vector<double> filters = ref::mel_filters(options);
  double window = 0;
  for (int n = 0; n < 400; ++n) window += std::pow(std::sin(M_PI * n / 399), 4);
  for (std::int64_t m = 0; m < 80; ++m) {
    double weight = 0, power = 0;
    for (std::size_t k = 0; k < 257; ++k) weight += filters[static_cast<std::size_t>(m) * 257 + k];
    for (std::int64_t t = 1; t < out.shape()[1]; ++t) power += std::exp(out[t * 80 + m]);
    const double expected = kDeviation * kDeviation * window * weight;
    EXPECT_NEAR(power / (kFrames - 1) / expected, 1, 5 / std::sqrt(kFrames - 1)) << "mel " << m;
  }
}

TEST(LogMel, DitherIsAFunctionOfTheSampleAndOffAtZero) {
  CpuDevice device;
  const std::vector<std::int16_t> wave = white_noise(3000, 1, 100);
  ops::MelOptions options;
  const auto compute = [&](std::int64_t id) {
    return device_log_mel(device, DType::f32, options, Utterances({wave}, 160, 0, {id}));
  };
  EXPECT_TRUE(compute(1).same_bits(compute(2)));
  options.dither = 1e-3;
  EXPECT_TRUE(compute(1).same_bits(compute(1)));
  EXPECT_FALSE(compute(1).same_bits(compute(2)));
  EXPECT_FALSE(compute(1).same_bits(compute(1 + (std::int64_t{1} << 32))));
  for (const DType dtype : kFeatureTypes)
    check_log_mel(device, dtype, options, Utterances({wave, wave}, 160, 7, {5, -1}));
}

TEST(LogMel, CountsItsWorkAndNeedsNoMemoryOnTheNullDevice) {
  const auto device = make_device(DeviceKind::null);
  WorkCounter work;
  const Stream stream(*device, &work);
  const ops::MelOptions options;
  const Buffer memory(*device, 64);
  const auto view = [&](DType dtype, const Shape& shape) {
    return TensorView{memory.data(), dtype, shape};
  };
  const TensorView tables = view(DType::u8, {ops::mel_table_bytes(options)});
  ops::make_mel_tables(stream, options, tables);
  ops::log_mel(stream, {.options = options,
                        .audio = view(DType::u16, {2, 16000}),
                        .audio_lengths = static_cast<std::int32_t*>(memory.data()),
                        .lengths = static_cast<std::int32_t*>(memory.data()),
                        .tables = tables,
                        .out = view(DType::f32, {2, 100, 80})});
  EXPECT_EQ(work.bytes,
            2 * 16000 * 2 + 2 * 100 * 80 * 4 + 2.0 * static_cast<double>(tables.bytes()));
  EXPECT_GT(work.flops, 200 * 2.5 * 512 * 8);
}

TEST(LogMel, RefusesOptionsByName) {
  const auto refused = [](ops::MelOptions options, const std::string& word) {
    try {
      ops::check(options);
      ADD_FAILURE() << word << " was taken";
    } catch (const DeckError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  EXPECT_NO_THROW(ops::check({}));
  refused({.fft = 400}, "fft = 400");
  refused({.fft = 2048}, "fft = 2048");
  refused({.window = 513}, "window = 513");
  refused({.window = 0}, "window = 0");
  refused({.hop = 513}, "hop = 513");
  refused({.hop = 0}, "hop = 0");
  refused({.mels = 0}, "mels = 0");
  refused({.mels = 258}, "mels = 258");
  refused({.sample_rate = 8000, .high = 4001}, "high = 4001");
  refused({.dither = -1}, "dither = -1");
  refused({.dither = std::nan("")}, "dither = nan");
}

TEST(LogMel, ChecksItsTensors) {
  CpuBench cpu;
  ops::MelOptions options;
  Utterances u({white_noise(800, 1, 100)}, 160);
  HostTensor tables(DType::u8, {ops::mel_table_bytes(options)}), out(DType::f32, {1, 5, 80});
  ops::make_mel_tables(cpu.stream, options, tables);
  const auto call = [&](const TensorView& audio, const TensorView& to) {
    ops::log_mel(cpu.stream,
                 log_mel_arguments(options, audio, u.samples, u.frames, u.ids, tables, to));
  };
  EXPECT_NO_THROW(call(u.audio, out));
  EXPECT_THROW(call(HostTensor(DType::f32, {1, 800}), out), Error);
  EXPECT_THROW(call(u.audio, HostTensor(DType::f32, {1, 5, 79})), Error);
  EXPECT_NO_THROW(call(u.audio, HostTensor(DType::f64, {1, 5, 80})));
  EXPECT_THROW(call(u.audio, HostTensor(DType::bf16, {1, 5, 80})), Error);
  EXPECT_THROW(call(u.audio, HostTensor(DType::f32, {1, 4, 80})), Error);  // 5 frames are counted
  u.samples.set(0, 801);
  EXPECT_THROW(call(u.audio, out), Error);
  u.samples.set(0, 800);
  auto args = log_mel_arguments(options, u.audio, u.samples, u.frames, u.ids, tables, out);
  args.options.dither = 1e-5, args.sample_ids = nullptr;
  EXPECT_THROW(ops::log_mel(cpu.stream, args), Error);
}

}  // namespace
}  // namespace choir::test
