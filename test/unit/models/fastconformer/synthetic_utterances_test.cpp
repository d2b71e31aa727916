#include "src/models/fastconformer/data.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace choir {
namespace {

FastConformerConfig conformer_of_31_symbols() {
  FastConformerConfig c;
  c.vocab_size = 31;
  return c;
}

TEST(SyntheticUtterances, UtterancesAreAFunctionOfTheMicroBatch) {
  SyntheticUtterances one(7, conformer_of_31_symbols()), other(7, conformer_of_31_symbols()),
      reseeded(8, conformer_of_31_symbols());
  bool differs = false;
  for (const std::int64_t index : {5, 0, 11}) {
    const ModelBatch a = one.micro_batch(index);
    other.micro_batch(index + 1);
    const ModelBatch b = other.micro_batch(index), c = reseeded.micro_batch(index);
    ASSERT_EQ(a["audio"].shape, b["audio"].shape);
    EXPECT_EQ(std::memcmp(a["audio"].data, b["audio"].data, a["audio"].bytes()), 0);
    EXPECT_EQ(std::memcmp(a["labels"].data, b["labels"].data, a["labels"].bytes()), 0);
    differs |= a["audio"].shape != c["audio"].shape ||
               std::memcmp(a["audio"].data, c["audio"].data, a["audio"].bytes()) != 0;
  }
  EXPECT_TRUE(differs);
}

// Rows of every length; padding has the value of padding, and each transcript has a path.
TEST(SyntheticUtterances, RowsAreRaggedAndPossible) {
  const FastConformerConfig c = conformer_of_31_symbols();
  SyntheticUtterances speech(3, c);
  std::int64_t targets = 0, silent = 0;
  std::set<std::int64_t> rows, ids;
  for (std::int64_t index = 0; index < 40; ++index) {
    const ModelBatch batch = speech.micro_batch(index);
    rows.insert(batch.samples);
    const std::int64_t samples = batch["audio"].shape[1], labels = batch["labels"].shape[1];
    for (std::int64_t row = 0; row < batch.samples; ++row) {
      const std::int64_t length = batch["audio_lengths"].as<std::int32_t>()[row];
      const std::int64_t count = batch["label_lengths"].as<std::int32_t>()[row];
      const std::int64_t frames =
          batch["frame_lengths"].as<std::int32_t>()[c.stages() * batch.samples + row];
      ASSERT_LE(length, samples);
      EXPECT_EQ(frames, c.frames(length));
      const auto* audio = static_cast<const std::int16_t*>(batch["audio"].data) + row * samples;
      for (std::int64_t i = length; i < samples; ++i) ASSERT_EQ(audio[i], 0);
      const auto* text = batch["labels"].as<std::int32_t>() + row * labels;
      std::int64_t needed = count;  // a blank between equal ones
      for (std::int64_t u = 0; u < labels; ++u) {
        ASSERT_TRUE(u < count ? text[u] >= 0 && text[u] < c.vocab_size : text[u] == -1);
        if (u > 0 && u < count && text[u] == text[u - 1]) ++needed;
      }
      EXPECT_LE(needed, frames);
      EXPECT_TRUE(ids.insert(batch["sample_ids"].as<std::int64_t>()[row]).second);
      targets += count, silent += count == 0;
    }
  }
  EXPECT_EQ(static_cast<double>(targets), speech.targets(0, 40).first());
  EXPECT_EQ(rows.size(), 3u) << "every shape occurs";
  EXPECT_GT(silent, 0) << "utterances without a transcript";
  const ModelBatch padding = speech.padding();
  EXPECT_EQ(padding.samples, 1);
  EXPECT_EQ(padding["audio_lengths"].as<std::int32_t>()[0], 0);
  EXPECT_EQ(padding["label_lengths"].as<std::int32_t>()[0], 0);
}

}  // namespace
}  // namespace choir
