#include "src/data/audio/synthesis.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

using Samples = std::vector<std::int16_t>;

// Frames of 4 samples, 2 apart, that start one sample before their nominal position.
TEST(OverlapAdd, AddsWhatOverlaps) {
  OverlapAdd sum(4, 2, 1);
  EXPECT_EQ(sum.delay(), 1);
  const std::vector<float> frames{9, 1, 2, 3, 10, 20, 30, 40, 100, 200, 300, 400};
  std::vector<float> wave = frames;
  for (float& x : wave) x /= 32768;
  const Samples expected{1, 12, 23, 130, 240, 300};
  for (const std::size_t part : {std::size_t{4}, std::size_t{8}, std::size_t{12}}) {
    Samples all;
    for (std::size_t at = 0; at < wave.size(); at += part) {
      const Samples more = sum.push(std::span(wave).subspan(at, std::min(part, wave.size() - at)));
      all.insert(all.end(), more.begin(), more.end());
    }
    EXPECT_EQ(all.size(), 5u);
    const Samples rest = sum.finish();
    all.insert(all.end(), rest.begin(), rest.end());
    EXPECT_EQ(all, expected) << part << " samples a push";
  }
  EXPECT_TRUE(sum.finish().empty());
  EXPECT_THROW(sum.push(std::span(wave).first(3)), Error);
  EXPECT_THROW(OverlapAdd(4, 4, 1), Error);
}

TEST(OverlapAdd, SoundBeyondFullScaleIsCut) {
  const std::vector<float> wave{1.5f, -1.5f, 0.5f, 0};
  EXPECT_EQ(pcm_of(wave), (Samples{32767, -32768, 16384, 0}));
}

}  // namespace
}  // namespace choir
