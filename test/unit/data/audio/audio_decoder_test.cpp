#include "src/data/audio/audio_decoder.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <span>

#include "choir_features.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/waveform.hpp"
#include "test/unit/data/scratch_folder.hpp"

#if defined(CHOIR_HAVE_SNDFILE) && defined(CHOIR_HAVE_SOXR)
#include <sndfile.h>

namespace choir {
namespace {

using test::ScratchFolder;

// A sine of `hertz`, and the part of it that a sampling rate can represent.
std::vector<float> sine(double hertz, int rate, double seconds, double amplitude = 0.5) {
  std::vector<float> samples(static_cast<std::size_t>(seconds * rate));
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>(
        amplitude * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  return samples;
}

// Signal to noise in dB against the analytic sine, without `edge` samples at both ends.
double snr(std::span<const float> got, double hertz, int rate, std::size_t edge, double gain = 1) {
  double signal = 0, noise = 0;
  for (std::size_t i = edge; i + edge < got.size(); ++i) {
    const double want =
        gain * 0.5 * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate);
    signal += want * want;
    noise += (got[i] - want) * (got[i] - want);
  }
  return 10 * std::log10(signal / noise);
}

// Amplitude of the sine in the sound, relative to the correct one; its phase is not free.
double gain_of(std::span<const float> got, double hertz, int rate, std::size_t edge) {
  double along = 0, norm = 0;
  for (std::size_t i = edge; i + edge < got.size(); ++i) {
    const double want =
        0.5 * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate);
    along += got[i] * want;
    norm += want * want;
  }
  return along / norm;
}

void write_sound(const std::string& path, int format, int rate, int channels,
                 std::span<const float> samples) {
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = channels;
  info.format = format;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  ASSERT_NE(file, nullptr) << sf_strerror(nullptr);
  // Vorbis of libsndfile cannot take long blocks.
  const sf_count_t frames = std::ssize(samples) / channels;
  for (sf_count_t at = 0; at < frames; at += 1024) {
    const sf_count_t here = std::min<sf_count_t>(1024, frames - at);
    ASSERT_EQ(sf_writef_float(file, samples.data() + at * channels, here), here);
  }
  sf_close(file);
}

std::vector<char> bytes_of(const std::string& path) {
  const std::string bytes = test::read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

// soxr's HQ promises 20 bits in the passband (up to 0.91 of the lower Nyquist frequency), 120 dB,
// and a roll-off of at most 0.01 dB within it (its default flag), which is a gain and no noise.
// fp32 samples alone have 24 bits, so a bound of 110 dB detects any shift and any wrong filter: a
// delay of a hundredth of a sample at 3 kHz gives 39 dB.
TEST(Resample, SineIsTheSineOfTheOtherRate) {
  struct Case {
    int from, to;
    double hertz;
  };
  for (const auto& [from, to, hertz] :
       {Case{22050, 16000, 440}, Case{22050, 16000, 7000}, Case{44100, 16000, 3000},
        Case{48000, 16000, 7000}, Case{8000, 16000, 3000}, Case{16000, 8000, 3000},
        Case{11025, 16000, 5000}}) {
    const auto got = resample(sine(hertz, from, 2.0), from, to);
    EXPECT_NEAR(static_cast<double>(got.size()), 2.0 * to, 1) << from << " to " << to;
    const double gain = gain_of(got, hertz, to, 1000);
    EXPECT_LT(std::abs(20 * std::log10(gain)), 0.01) << hertz << " Hz, " << from << " to " << to;
    EXPECT_GT(snr(got, hertz, to, 1000, gain), 110) << hertz << " Hz, " << from << " to " << to;
  }
}

TEST(Resample, WhatTheLowerRateCannotHoldGoes) {
  const auto got = resample(sine(10000, 48000, 1.0), 48000, 16000);
  double most = 0;
  for (std::size_t i = 1000; i + 1000 < got.size(); ++i)
    most = std::max(most, static_cast<double>(std::abs(got[i])));
  EXPECT_LT(most, 0.5e-5) << "100 dB below the sine: no alias at 6 kHz";
}

TEST(Resample, SameRateAndSameBits) {
  const auto samples = sine(440, 22050, 0.5);
  EXPECT_EQ(resample(samples, 22050, 22050), samples);
  EXPECT_EQ(resample(samples, 22050, 16000), resample(samples, 22050, 16000));
}

class Sound : public testing::Test {
 protected:
  ScratchFolder folder_;
};

TEST_F(Sound, SixteenBitsPassBitByBit) {
  std::vector<float> ramp(65536);
  for (std::size_t i = 0; i < ramp.size(); ++i)
    ramp[i] = static_cast<float>(static_cast<int>(i) - 32768) / 32768.0f;
  for (const auto& [name, format] : {std::pair{"a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16},
                                     std::pair{"a.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
                                     std::pair{"b.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_24},
                                     std::pair{"c.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT},
                                     std::pair{"b.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_24}}) {
    // libsndfile scales when it writes: 24 bits lose nothing of 16.
    write_sound(folder_ / name, format, 16000, 1, ramp);
    auto from_file = AudioDecoder::from_file(folder_ / name);
    EXPECT_EQ(from_file.frames(), 65536);
    EXPECT_EQ(from_file.rate(), 16000);
    const Pcm pcm = from_file.read(0, 65536, {}, 16000);
    int worst = 0;
    for (std::size_t i = 0; i < ramp.size(); ++i)
      worst = std::max(worst, std::abs(pcm.samples[i] - (static_cast<int>(i) - 32768)));
    // sf_write_float scales by 32767 or 8388607, not by a power of two: the error is up to one
    // step.
    EXPECT_LE(worst, 1) << name;
    auto from_memory = AudioDecoder::from_memory(bytes_of(folder_ / name), name);
    EXPECT_EQ(from_memory.read(0, 65536, {}, 16000).samples, pcm.samples) << name;
  }
}

TEST_F(Sound, SegmentsAreWhatTheWholeHasThere) {
  const auto wave = sine(700, 16000, 3.0);
  for (const auto& [name, format] : {std::pair{"a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16},
                                     std::pair{"a.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
                                     std::pair{"a.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS}}) {
    write_sound(folder_ / name, format, 16000, 1, wave);
    const auto whole = AudioDecoder::from_file(folder_ / name).read(0, 48000, {}, 16000).samples;
    auto decoder = AudioDecoder::from_file(folder_ / name);
    for (const std::int64_t first : {100, 20000, 20500, 5000}) {  // on, on, overlapping, back
      const auto part = decoder.read(first, 1500, {}, 16000).samples;
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first))
          << name << " from " << first;
    }
  }
}

TEST_F(Sound, OggIsTheSoundItWasMadeOf) {
  write_sound(folder_ / "a.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000, 1, sine(700, 16000, 2.0));
  const auto pcm = AudioDecoder::from_file(folder_ / "a.ogg").read(0, 32000, {}, 16000).samples;
  std::vector<float> got(pcm.size());
  for (std::size_t i = 0; i < got.size(); ++i) got[i] = static_cast<float>(pcm[i]) / 32768.0f;
  EXPECT_GT(snr(got, 700, 16000, 2000), 20) << "a lossy codec, in place and in time";
}

TEST_F(Sound, ResampledOnTheWay) {
  write_sound(folder_ / "a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 22050, 1, sine(700, 22050, 2.0));
  const auto pcm = AudioDecoder::from_file(folder_ / "a.wav").read(0, 44100, {}, 16000).samples;
  EXPECT_NEAR(static_cast<double>(pcm.size()), 32000, 1);
  std::vector<float> got(pcm.size());
  for (std::size_t i = 0; i < got.size(); ++i) got[i] = static_cast<float>(pcm[i]) / 32768.0f;
  // Two roundings to 16 bits of a sine of half scale: 6.02 * 16 + 1.76 - 6 - 3 = 89 dB; libsndfile
  // scales by 32767 of 32768 when it writes, which alone is 90.3 dB: 86.5 dB together.
  EXPECT_GT(snr(got, 700, 16000, 1000), 85);
}

TEST_F(Sound, Channels) {
  std::vector<float> both;
  for (int i = 0; i < 100; ++i) both.push_back(0.5f), both.push_back(-0.25f);
  write_sound(folder_ / "s.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 2, both);
  auto decoder = AudioDecoder::from_file(folder_ / "s.wav");
  EXPECT_EQ(decoder.read(0, 100, {0}, 16000).samples[50], 16384);
  EXPECT_EQ(decoder.read(0, 100, {1}, 16000).samples[50], -8192);
  EXPECT_EQ(decoder.read(0, 100, {ChannelChoice::kAverage}, 16000).samples[50], 4096);
  EXPECT_DATA_ERROR(decoder.read(0, 100, {}, 16000), "has 2 channels and none was chosen");
  EXPECT_DATA_ERROR(decoder.read(0, 100, {2}, 16000),
                    "has 2 channels, but channel 2 was requested");
  write_sound(folder_ / "t.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 2, both);
  auto narrow = AudioDecoder::from_file(folder_ / "t.wav");
  EXPECT_NEAR(narrow.read(0, 100, {1}, 16000).samples[99], -8192, 1);
}

TEST_F(Sound, ClippingIsSeen) {
  const auto clipped = [&](std::vector<float> samples) {
    write_sound(folder_ / "c.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 1, samples);
    return AudioDecoder::from_file(folder_ / "c.wav")
        .read(0, std::ssize(samples), {}, 16000)
        .clipped;
  };
  EXPECT_FALSE(clipped({0.5f, 0.9f, -0.9f, 0.1f}));
  EXPECT_FALSE(clipped({1.0f, 0.5f, -1.0f, 0.1f})) << "a peak that just fits";
  EXPECT_TRUE(clipped({0.5f, 1.25f, 0.1f})) << "one that does not";
  EXPECT_TRUE(clipped({0.5f, -1.0f, -1.0f, -1.0f, 0.1f})) << "three at the rail";
}

TEST_F(Sound, WhatCannotBeReadIsNamed) {
  const auto fault_of = [](const auto& action) -> int {
    try {
      action();
    } catch (const AudioError& error) {
      return static_cast<int>(error.fault());
    }
    return -1;
  };
  const auto opening = [&](const std::string& name) {
    return fault_of([&] { AudioDecoder::from_file(folder_ / name); });
  };
  EXPECT_EQ(opening("none.wav"), static_cast<int>(AudioFault::missing_file));
  test::write_bytes(folder_ / "empty.wav", "");
  EXPECT_EQ(opening("empty.wav"), static_cast<int>(AudioFault::empty));
  test::write_bytes(folder_ / "text.wav", "this is no sound at all, only a text");
  EXPECT_EQ(opening("text.wav"), static_cast<int>(AudioFault::unreadable));
  write_sound(folder_ / "zero.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, {});
  EXPECT_EQ(opening("zero.wav"), static_cast<int>(AudioFault::zero_length));
  write_sound(folder_ / "nan.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 1,
              std::vector<float>{0.5f, std::nanf(""), 0.25f});
  EXPECT_DATA_ERROR(AudioDecoder::from_file(folder_ / "nan.wav").read(0, 3, {}, 16000),
                    "sample 1 is nan");
  EXPECT_DATA_ERROR(AudioDecoder::from_file(folder_ / "nan.wav").read(1, 3, {}, 16000),
                    "has 3 samples, but 3 from sample 1 on were requested");
  // A truncated FLAC file: its header still gives the full length.
  write_sound(folder_ / "cut.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000, 1,
              sine(700, 16000, 2.0));
  const std::string bytes = test::read_bytes(folder_ / "cut.flac");
  test::write_bytes(folder_ / "cut.flac", bytes.substr(0, bytes.size() / 2));
  const int fault =
      fault_of([&] { AudioDecoder::from_file(folder_ / "cut.flac").read(0, 32000, {}, 16000); });
  EXPECT_TRUE(fault == static_cast<int>(AudioFault::too_short) ||
              fault == static_cast<int>(AudioFault::unreadable))
      << fault;
}

TEST_F(Sound, OtherKindsOfFilesAreNamedWithACure) {
  const struct {
    std::string bytes, kind, cure;
  } kinds[] = {
      {std::string("\0\0\0\x20"
                   "ftypM4A \0\0\0\0",
                   16),
       "is MP4 or M4A", "ffmpeg"},
      {"\x1a\x45\xdf\xa3 webm", "is WebM or Matroska", "ffmpeg"},
      {"wvpk and more", "is WavPack", "ffmpeg"},
      {"<!DOCTYPE html><html>404</html>", "is a page of HTML", "the sound file itself"},
      {"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS", "itself"},
      {"this is no sound at all, only a text", "cannot be read as audio", "ffmpeg"}};
  for (const auto& one : kinds) {
    test::write_bytes(folder_ / "a.wav", one.bytes);
    try {
      AudioDecoder::from_file(folder_ / "a.wav");
      ADD_FAILURE() << one.kind;
    } catch (const AudioError& error) {
      EXPECT_EQ(error.fault(), AudioFault::unreadable);
      EXPECT_NE(std::string(error.what()).find(one.kind), std::string::npos) << error.what();
      EXPECT_NE(error.hint().find(one.cure), std::string::npos) << error.hint();
    }
  }
}

TEST_F(Sound, DamageIsNamedWhenAManifestIsMade) {
  const auto make = [&](double hours) {
    return write_folder_manifest({folder_ / "sound"}, folder_ / "made.json",
                                 {.checked_hours = hours});
  };
  for (const char* name : {"a", "b"}) {
    test::write_bytes(folder_ / fmt::format("sound/{}.txt", name), name);
    write_sound(folder_ / fmt::format("sound/{}.flac", name), SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                16000, 1, sine(700, 16000, 2.0));
  }
  EXPECT_EQ(make(1).decoded, 2);
  EXPECT_DOUBLE_EQ(make(1).seconds_decoded, 4.0);
  EXPECT_NE(make(1).to_string().find("2 recordings, 4.0 s: every sample was decoded"),
            std::string::npos);
  std::string bytes = test::read_bytes(folder_ / "sound/b.flac");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  test::write_bytes(folder_ / "sound/b.flac", bytes);
  EXPECT_DATA_ERROR(make(1), "b.flac' ends after ");
  const std::string damaged = bytes;
  write_sound(folder_ / "sound/b.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 16000, 2,
              sine(700, 16000, 2.0));
  EXPECT_EQ(make(1).decoded, 2);
  bytes = test::read_bytes(folder_ / "sound/b.flac");
  bytes[26] = static_cast<char>(bytes[26] ^ 1);  // of the MD5
  test::write_bytes(folder_ / "sound/b.flac", bytes);
  EXPECT_DATA_ERROR(make(1), "b.flac' has other samples than the MD5 in its header says");
  test::write_bytes(folder_ / "sound/b.flac", damaged);
  const FolderManifestSummary beyond = make(1.0 / 3600);  // the first recording lasts longer
  EXPECT_EQ(beyond.decoded, 1);
  EXPECT_EQ(beyond.opened, 1);
  EXPECT_NE(beyond.to_string().find("1 recording, whose headers alone were read: --check-audio"),
            std::string::npos);
}

TEST(ChannelChoice, Words) {
  EXPECT_EQ(channel_choice_of("").value, ChannelChoice::kUnset);
  EXPECT_EQ(channel_choice_of("average").value, ChannelChoice::kAverage);
  EXPECT_EQ(channel_choice_of("3").value, 3);
  for (const char* word : {"left", "-1", "1.5", "1 "})
    EXPECT_THROW(channel_choice_of(word), DeckError);
}

}  // namespace
}  // namespace choir
#endif
