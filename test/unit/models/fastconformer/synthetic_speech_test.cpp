#include "src/models/fastconformer/data.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

FastConformerConfig narrow_conformer() {
  return {.n_layer = 1, .n_embd = 16, .n_head = 4, .subsampling_channels = 8, .vocab_size = 7};
}

std::int32_t at(const TensorView& view, std::int64_t i) {
  return view.as<std::int32_t>()[i];
}

TEST(SyntheticSpeech, FillsMicroBatchesWithUtterancesOfAboutOneLength) {
  SyntheticSpeech speech(narrow_conformer(), {.batch_duration = 30, .shortest = 1, .longest = 5});
  const std::vector<BatchShape> shapes = speech.shapes();
  ASSERT_EQ(shapes.size(), 4u);
  for (std::int64_t n = 0; n < 4; ++n) {
    const ModelBatch batch = speech.micro_batch(n);
    const auto most = static_cast<std::int64_t>(n + 2) * 16000;  // edges 2, 3, 4, 5 s
    EXPECT_EQ(batch.samples, 30 * 16000 / most);
    EXPECT_EQ(batch["audio"].shape[1], (most + 1279) / 1280 * 1280);  // frames of 80 ms
    EXPECT_EQ(shapes[static_cast<std::size_t>(n)].audio_samples, batch["audio"].shape[1]);
    double samples = 0, labels = 0;
    for (std::int64_t row = 0; row < batch.samples; ++row) {
      const std::int32_t length = at(batch["audio_lengths"], row);
      EXPECT_LE(length, most);
      EXPECT_GE(length, most - 16000);
      EXPECT_EQ(at(batch["frame_lengths"], 3 * batch.samples + row),
                narrow_conformer().frames(length));
      EXPECT_LE(2 * at(batch["label_lengths"], row), narrow_conformer().frames(length));
      samples += length, labels += at(batch["label_lengths"], row);
    }
    EXPECT_EQ(at(batch["audio_lengths"], 0), most);
    EXPECT_DOUBLE_EQ(speech.seconds(n), samples / 16000);
    EXPECT_EQ(speech.targets(n), labels);
  }
}

TEST(SyntheticSpeech, SoundEndsWhereTheUtteranceEnds) {
  SyntheticSpeech speech(narrow_conformer(), {.batch_duration = 8, .shortest = 1, .longest = 2});
  const ModelBatch batch = speech.micro_batch(1);
  const auto* audio = static_cast<const std::int16_t*>(batch["audio"].data);
  const std::int64_t width = batch["audio"].shape[1];
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    const std::int32_t length = at(batch["audio_lengths"], row);
    const auto loud = std::count_if(audio + row * width, audio + row * width + length,
                                    [](std::int16_t x) { return x != 0; });
    EXPECT_GT(loud, length * 99 / 100);
    EXPECT_TRUE(std::all_of(audio + row * width + length, audio + (row + 1) * width,
                            [](std::int16_t x) { return x == 0; }));
    for (std::int64_t u = 0; u < batch["labels"].shape[1]; ++u) {
      const std::int32_t label = at(batch["labels"], row * batch["labels"].shape[1] + u);
      if (u < at(batch["label_lengths"], row)) {
        EXPECT_TRUE(label >= 0 && label < 7);
      } else {
        EXPECT_EQ(label, -1);
      }
    }
  }
}

TEST(SyntheticSpeech, RepeatsAndIsAFunctionOfTheSeed) {
  SyntheticSpeech one(narrow_conformer(), {.batch_duration = 4}),
      same(narrow_conformer(), {.batch_duration = 4}),
      other(narrow_conformer(), {.batch_duration = 4, .seed = 1});
  const auto sound = [](const ModelBatch& b) {
    const auto* audio = static_cast<const std::int16_t*>(b["audio"].data);
    return std::vector<std::int16_t>(audio, audio + b["audio"].count());
  };
  EXPECT_EQ(one.micro_batch(1)["audio"].data, one.micro_batch(5)["audio"].data);
  EXPECT_EQ(sound(one.micro_batch(2)), sound(same.micro_batch(2)));
  EXPECT_NE(sound(one.micro_batch(2)), sound(other.micro_batch(2)));
}

TEST(SyntheticSpeech, DurationsThatCannotBe) {
  using Options = BenchAudio;
  for (const Options& bad : {Options{.batch_duration = 3, .shortest = 2, .longest = 4},
                             Options{.shortest = 0}, Options{.shortest = 5, .longest = 4}})
    EXPECT_THROW(SyntheticSpeech(narrow_conformer(), bad), DeckError);
}

}  // namespace
}  // namespace choir
