// Tests of texts in given shares: the window of each sample, pools, and the message about a changed
// blend.
#include "src/data/text/token_samples.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <set>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/data/sampling/mix.hpp"

namespace choir {
namespace {

constexpr std::int64_t kBlendBlock = 16;

/// Blends the texts a and b.
TokenBlend blend_of(const char* text, const std::vector<std::int64_t>& lengths,
                    std::uint64_t seed = 7, const std::vector<double>& temperature = {}) {
  const SpeechMix mix =
      SpeechMix::of_json(nlohmann::json::parse(text), temperature, "data.input_cfg");
  std::vector<TokenPool> pools;
  for (const SpeechPool& pool : pools_of(mix, lengths))
    pools.push_back({pool.leaves, pool.probability});
  return {pools, std::vector<std::string>{"a", "b"}, lengths, kBlendBlock, seed};
}

const char* const kThreeToOne = R"([{"folder": "a", "weight": 3}, {"folder": "b", "weight": 1}])";
const std::vector<std::int64_t> kLengths{1000, 5000};

TEST(TokenBlend, OnePoolIsThePlainSampler) {
  TokenBlend blend = blend_of(R"(["a", "b"])", kLengths, 7);
  const Sampler plain(6000, kBlendBlock, 7);
  ASSERT_EQ(blend.pools(), 1);
  for (const std::int64_t i : {0, 1, 373, 374, 100000})
    EXPECT_EQ(blend.window(i).start, plain.window(i).start);
  EXPECT_EQ(blend.contents(), "");
}

// A binomial number: five standard deviations for 40,000 draws.
TEST(TokenBlend, KeepsToItsWeights) {
  TokenBlend blend = blend_of(kThreeToOne, kLengths, 7);
  constexpr int kDraws = 40000;
  int first = 0;
  for (int i = 0; i < kDraws; ++i) first += blend.window(i).start < 1000;
  EXPECT_NEAR(first, 0.75 * kDraws, 5 * std::sqrt(kDraws * 0.75 * 0.25));
}

// An epoch of a pool has each of its windows once, and each window lies within its own text.
TEST(TokenBlend, PoolsHaveEpochsOfTheirOwn) {
  TokenBlend blend = blend_of(kThreeToOne, kLengths, 7);
  const auto windows = static_cast<std::size_t>((1000 - kBlendBlock) / kBlendBlock);
  std::set<std::int64_t> starts;
  for (std::int64_t i = 0; starts.size() < windows; ++i) {
    const TokenWindow window = blend.window(i);
    const bool in_first = blend.pool_of(i) == 0;
    ASSERT_TRUE(in_first ? window.start + window.targets + 1 <= 1000
                         : window.start >= 1000 && window.start + window.targets + 1 <= 6000);
    ASSERT_TRUE(!in_first || starts.insert(window.start).second) << i;
  }
}

// No window reaches beyond the first 200 tokens of a, and an epoch of a has each window within
// them.
TEST(TokenBlend, ALimitedTextIsItsBeginning) {
  const TokenPool pools[] = {{.texts = {0}, .probability = 0.5, .limit = 200},
                             {.texts = {1}, .probability = 0.5}};
  TokenBlend blend(pools, std::vector<std::string>{"a", "b"}, kLengths, kBlendBlock, 7);
  std::set<std::int64_t> starts;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const TokenWindow window = blend.window(i);
    if (blend.pool_of(i) == 1) {
      ASSERT_GE(window.start, 1000);
      continue;
    }
    ASSERT_LE(window.start + window.targets + 1, 200);
    starts.insert(window.start / kBlendBlock);
  }
  EXPECT_EQ(starts.size(), static_cast<std::size_t>(200 / kBlendBlock));
  EXPECT_NE(blend.contents().find("0.5 of 200 tokens"), std::string::npos);
}

// A rank of any layout, and a resumed run, gets the items that one rank gets in order.
TEST(TokenBlend, SamplesDoNotDependOnWhatWasAskedBefore) {
  TokenBlend in_order = blend_of(kThreeToOne, kLengths, 7);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < 5000; ++i) starts.push_back(in_order.window(i).start);
  TokenBlend anyhow = blend_of(kThreeToOne, kLengths, 7);
  for (const std::size_t i : {4999, 0, 1024, 1023, 3000, 2999, 4096, 17})
    EXPECT_EQ(anyhow.window(static_cast<std::int64_t>(i)).start, starts[i]) << i;
  TokenBlend other = blend_of(kThreeToOne, kLengths, 8);
  std::int64_t same = 0;
  for (std::size_t i = 0; i < starts.size(); ++i)
    same += other.window(static_cast<std::int64_t>(i)).start == starts[i];
  EXPECT_LT(same, 500);
}

TEST(TokenBlend, TemperatureAndContents) {
  const TokenBlend alike = blend_of(kThreeToOne, kLengths, 7, {0});
  EXPECT_DOUBLE_EQ(alike.share(0), 0.5);
  const TokenBlend root = blend_of(kThreeToOne, kLengths, 7, {0.5});
  EXPECT_DOUBLE_EQ(root.share(0), std::sqrt(3.0) / (std::sqrt(3.0) + 1));
  const TokenBlend by_length = blend_of(R"(["a", "b"])", kLengths, 7, {0.5});
  EXPECT_DOUBLE_EQ(by_length.share(1), std::sqrt(5.0) / (std::sqrt(5.0) + 1));
  EXPECT_EQ(blend_of(kThreeToOne, kLengths).contents(),
            ", blend 0.75 of 1000 tokens + 0.25 of 5000 tokens");
  EXPECT_NE(alike.contents(), root.contents());
}

TEST(TokenBlend, NamesATextThatIsTooShort) {
  try {
    blend_of(kThreeToOne, {1000, 16});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("'b': the training data has 16 tokens"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace choir
