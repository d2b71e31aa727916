#include "src/data/audio/audio_decoder.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "choir_features.hpp"
#include "src/data/audio/audio_error.hpp"
#include "test/support/wav_file.hpp"

#if defined(CHOIR_HAVE_SNDFILE) && defined(CHOIR_HAVE_SOXR)
namespace choir::test {
namespace {

class RecordingFile : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "recording_test.wav";
  ~RecordingFile() override { std::filesystem::remove(path_); }

  std::vector<std::int16_t> in_parts(Recording& recording, std::int64_t part) {
    std::vector<std::int16_t> all;
    for (std::int64_t first = 0; first < recording.samples(); first += part) {
      const auto some = recording.read(first, std::min(part, recording.samples() - first));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
};

TEST_F(RecordingFile, OfTheSameRateIsTheFile) {
  const auto sound = tones(16000, 1.7, 3);
  write_wav(path_, 16000, 1, sound);
  Recording recording = Recording::open({.path = path_}, 16000);
  EXPECT_EQ(recording.samples(), std::ssize(sound));
  EXPECT_EQ(in_parts(recording, 5003), sound);
}

TEST_F(RecordingFile, ThatWasCutOffSaysSo) {
  write_wav(path_, 16000, 1, tones(16000, 1, 3));
  EXPECT_EQ(Recording::open({.path = path_}, 16000).shortfall(), "");
  std::filesystem::resize_file(path_, 44 + 2 * 6000);
  const std::string cut = "ends after 6000 of the 16000 samples that its header promises";
  EXPECT_EQ(Recording::open({.path = path_}, 16000).shortfall(), cut);
  EXPECT_EQ(Recording::open({.path = path_, .duration = 0.2}, 16000).shortfall(), "")
      << "a segment that is there";
}

TEST_F(RecordingFile, PartsOfAnotherRateAreThoseOfTheWhole) {
  for (const int rate : {8000, 44100, 48000}) {
    write_wav(path_, rate, 1, tones(rate, 2.3, 5));
    Recording recording = Recording::open({.path = path_}, 16000);
    EXPECT_NEAR(static_cast<double>(recording.samples()), 2.3 * 16000, 1);
    const auto whole = recording.read(0, recording.samples());
    const auto parts = in_parts(recording, 7001);
    ASSERT_EQ(parts.size(), whole.size());
    // The filter's tail beyond the margin is below its 120 dB; the rounding to 16 bits may differ.
    int most = 0;
    for (std::size_t i = 0; i < parts.size(); ++i)
      most = std::max(most, std::abs(parts[i] - whole[i]));
    EXPECT_LE(most, 1) << rate;
  }
}

TEST_F(RecordingFile, AStretchAndAChannel) {
  const auto left = tones(16000, 1, 1), right = tones(16000, 1, 2);
  std::vector<std::int16_t> both;
  for (std::size_t i = 0; i < left.size(); ++i) both.insert(both.end(), {left[i], right[i]});
  write_wav(path_, 16000, 2, both);
  EXPECT_THROW(Recording::open({.path = path_}, 16000), AudioError);
  EXPECT_THROW(Recording::open({.path = path_, .channel = {2}}, 16000), AudioError);
  EXPECT_THROW(
      Recording::open({.path = path_, .offset = 0.5, .duration = 0.6, .channel = {0}}, 16000),
      AudioError);
  Recording recording =
      Recording::open({.path = path_, .offset = 0.25, .duration = 0.5, .channel = {1}}, 16000);
  EXPECT_EQ(recording.read(0, 9000), [&] {
    std::vector<std::int16_t> expected(right.begin() + 4000, right.begin() + 12000);
    expected.resize(9000);  // silence behind the end
    return expected;
  }());
}

}  // namespace
}  // namespace choir::test
#endif
