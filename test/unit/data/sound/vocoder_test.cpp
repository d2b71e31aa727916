#include "src/data/audio/synthesis.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "choir/core/error.hpp"
#include "src/data/metrics/intelligibility.hpp"
#include "src/device/cpu_device.hpp"
#include "test/support/log_mel_case.hpp"

namespace choir {
namespace {

using Samples = std::vector<std::int16_t>;

constexpr int kSpeechRate = 16000;
constexpr std::int64_t kRowSamples = 160, kRowMels = 80;

VocoderOptions vocoder_options(std::int64_t centre = 0) {
  VocoderOptions options;
  options.mel.window = 512;
  options.mel.preemphasis = 0;
  options.centre = centre;
  return options;
}

/// Mel rows of the wave [T, mels]; row t is centred at t hop + centre.
std::vector<float> rows_of(const VocoderOptions& options, Samples wave) {
  wave.erase(wave.begin(), wave.begin() + options.centre);
  wave.resize(wave.size() + static_cast<std::size_t>(options.centre));
  CpuDevice device;
  const HostTensor rows =
      test::device_log_mel(device, DType::f32, options.mel, test::Utterances({wave}, kRowSamples));
  std::vector<float> all(static_cast<std::size_t>(rows.count()));
  for (std::int64_t i = 0; i < rows.count(); ++i)
    all[static_cast<std::size_t>(i)] = static_cast<float>(rows[i]);
  return all;
}

/// The output if this many rows are pushed at a time.
Samples streamed(const VocoderOptions& options, const std::vector<float>& rows,
                 std::int64_t rows_a_push) {
  Vocoder vocoder(options);
  Samples sound;
  const auto append = [&](const Samples& more) {
    sound.insert(sound.end(), more.begin(), more.end());
  };
  const auto push = static_cast<std::size_t>(rows_a_push * kRowMels);
  for (std::size_t at = 0; at < rows.size(); at += push) {
    append(vocoder.push(std::span(rows).subspan(at, std::min(push, rows.size() - at))));
    const auto pushed = static_cast<std::int64_t>(std::min(at + push, rows.size())) / kRowMels;
    const std::int64_t whole = pushed / options.block * options.block * kRowSamples;
    EXPECT_EQ(std::ssize(sound), std::max<std::int64_t>(whole - vocoder.delay(), 0));
  }
  append(vocoder.finish());
  return sound;
}

TEST(Vocoder, SpeechThatComesBackIsUnderstood) {
  const Samples wave = test::speech_like(4 * kSpeechRate, kSpeechRate, 5);
  for (const std::int64_t centre : {0, 80}) {
    const VocoderOptions options = vocoder_options(centre);
    const Samples sound = vocode(options, rows_of(options, wave));
    ASSERT_EQ(sound.size(), wave.size());
    EXPECT_GE(stoi(wave, sound, kSpeechRate).value(), 0.95) << centre;
    const Samples stream = streamed(options, rows_of(options, wave), options.block);
    ASSERT_EQ(stream.size(), wave.size());
    EXPECT_GE(stoi(wave, stream, kSpeechRate).value(), 0.95) << centre;
  }
}

TEST(Vocoder, AStreamIsTheSameHoweverItIsCut) {
  const VocoderOptions options = vocoder_options(80);
  // 101 rows: the last block is not full.
  const auto rows = rows_of(options, test::speech_like(101 * kRowSamples, kSpeechRate, 6));
  const Samples whole = streamed(options, rows, 101);
  ASSERT_EQ(std::ssize(whole), 101 * kRowSamples);
  for (const std::int64_t push : {1, 3, 8, 13}) EXPECT_EQ(streamed(options, rows, push), whole);
}

TEST(Vocoder, BeginsAnewAfterItsEnd) {
  const VocoderOptions options = vocoder_options();
  const auto rows = rows_of(options, test::speech_like(20 * kRowSamples, kSpeechRate, 7));
  Vocoder vocoder(options);
  Samples first = vocoder.push(rows), second;
  for (const auto x : vocoder.finish()) first.push_back(x);
  second = vocoder.push(rows);
  for (const auto x : vocoder.finish()) second.push_back(x);
  EXPECT_EQ(first, second);
  EXPECT_TRUE(vocoder.finish().empty());
  VocoderOptions other = options;
  other.seed = 1;
  EXPECT_NE(streamed(other, rows, 8), first);
}

TEST(Vocoder, WhatIsNoSpeechIsNoDisaster) {
  const VocoderOptions options = vocoder_options();
  std::vector<float> rows(static_cast<std::size_t>(30 * kRowMels), -16.6356f);  // ln 2^-24
  for (const auto x : vocode(options, rows)) EXPECT_LE(std::abs(x), 3);
  for (std::size_t i = 0; i < rows.size(); i += 7) rows[i] = std::nanf("");
  for (std::size_t i = 0; i < rows.size(); i += 11) rows[i] = 1e30f;
  for (std::size_t i = 0; i < rows.size(); i += 13) rows[i] = -INFINITY;
  EXPECT_EQ(std::ssize(vocode(options, rows)), 30 * kRowSamples);
  EXPECT_TRUE(vocode(options, {}).empty());
}

TEST(Vocoder, RefusesByName) {
  const auto refused = [](auto change) {
    VocoderOptions options = vocoder_options();
    change(options);
    EXPECT_THROW(Vocoder{options}, DeckError);
  };
  refused([](auto& o) { o.mel.preemphasis = 0.97; });
  refused([](auto& o) { o.mel.fft = 400; });
  refused([](auto& o) { o.iterations = 0; });
  refused([](auto& o) { o.centre = 161; });
  refused([](auto& o) { o.block = 0; });
  refused([](auto& o) { o.look_ahead = -1; });
}

}  // namespace
}  // namespace choir
