#include "src/data/audio/waveform.hpp"

#include "choir/core/error.hpp"
#include "src/data/audio/waveform.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

TEST(WavWriter, WhatIsAppendedIsReadAgain) {
  const test::ScratchFolder folder;
  const std::vector<std::int16_t> samples{1, -2, 32767, -32768, 5};
  WavWriter writer(folder / "a.wav", 16000);
  writer.append(std::span(samples).first(2));
  writer.append(std::span(samples).subspan(2));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.wav"));
  EXPECT_EQ(writer.samples(), 5);
  writer.finish();
  const Wav wav = parse_wav(test::read_bytes(folder / "a.wav"), "a.wav");
  EXPECT_EQ(wav.sample_rate, 16000);
  EXPECT_EQ(wav.samples, samples);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.wav.tmp"));
}

TEST(WavWriter, NothingIsLeftOfWhatWasNotFinished) {
  const test::ScratchFolder folder;
  { WavWriter(folder / "a.wav", 8000).append(std::vector<std::int16_t>{1}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(WavWriter(folder / "no/a.wav", 8000), StorageError);
}

}  // namespace
}  // namespace choir
