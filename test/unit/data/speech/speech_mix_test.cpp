#include "src/data/sampling/mix.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"

namespace choir {
namespace {

SpeechMix mix_of(const char* text, const std::vector<double>& temperature = {}) {
  return SpeechMix::of_json(nlohmann::json::parse(text), temperature, "data.train");
}

std::string error_of(const char* text) {
  try {
    leaves_of(mix_of(text));
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kNested = R"([
  {"folder": "a", "weight": 7},
  {"group": [{"folder": "b", "weight": 2, "tags": {"lang": "de"}},
             {"folder": "c", "weight": 1}], "weight": 3, "tags": {"task": "asr", "lang": "en"}}])";

TEST(SpeechMix, GroupsMultiplyAndTagsAreInherited) {
  const SpeechMix mix = mix_of(kNested);
  const auto leaves = leaves_of(mix);
  ASSERT_EQ(leaves.size(), 3u);
  EXPECT_TRUE(leaves[0].tags.empty());
  EXPECT_EQ(leaves[1].tags.at("lang"), "de");
  EXPECT_EQ(leaves[1].tags.at("task"), "asr");
  EXPECT_EQ(leaves[2].tags.at("lang"), "en");
  const std::int64_t sizes[] = {10, 20, 30};
  const auto pools = pools_of(mix, sizes);
  ASSERT_EQ(pools.size(), 3u);
  EXPECT_DOUBLE_EQ(pools[0].probability, 0.7);
  EXPECT_DOUBLE_EQ(pools[1].probability, 0.2);
  EXPECT_DOUBLE_EQ(pools[2].probability, 0.1);
}

// The example of NeMo's documentation, written as JSON.
TEST(SpeechMix, WordsOfNemo) {
  const SpeechMix mix = SpeechMix::of_text(R"({"input_cfg": [
    {"type": "lhotse_shar", "shar_path": "duplexA", "weight": 0.7},
    {"type": "group", "weight": 0.3, "tags": {"task": "qa"}, "input_cfg": [
      {"type": "nemo", "manifest_filepath": "b.json", "weight": 2},
      {"type": "lhotse", "cuts_path": "c.jsonl.gz", "weight": 1, "limit": 5}]}]})",
                                           1, "blend.json");
  const auto leaves = leaves_of(mix);
  ASSERT_EQ(leaves.size(), 3u);
  EXPECT_EQ(leaves[0].folder, "duplexA");
  EXPECT_EQ(leaves[1].folder, "b.json");
  EXPECT_EQ(leaves[2].folder, "c.jsonl.gz");
  EXPECT_EQ(leaves[2].tags.at("task"), "qa");
  EXPECT_EQ(leaves[0].limit, 0);
  EXPECT_EQ(leaves[2].limit, 5);
  EXPECT_NE(
      error_of(R"([{"type": "nemo_tarred", "manifest_filepath": "a"}])").find(".type: 'nemo_"),
      std::string::npos);
  EXPECT_NE(error_of(R"([{"type": "group", "folder": "a"}])").find("without a list"),
            std::string::npos);
  EXPECT_NE(error_of(R"([{"type": "nemo", "group": ["a"]}])").find("has a list"),
            std::string::npos);
  EXPECT_NE(error_of(R"([{"group": ["a"], "limit": 3}])").find("not to a group"),
            std::string::npos);
  EXPECT_NE(error_of(R"([{"folder": "a", "limit": 0}])").find("limit: 0 is not understood"),
            std::string::npos);
}

TEST(SpeechMix, TemperatureOfEachLevel) {
  const std::int64_t sizes[] = {10, 20, 30};
  auto pools = pools_of(mix_of(kNested, {0}), sizes);  // holds for all levels
  EXPECT_DOUBLE_EQ(pools[0].probability, 0.5);
  EXPECT_DOUBLE_EQ(pools[1].probability, 0.25);
  pools = pools_of(mix_of(kNested, {1, 0.5}), sizes);
  EXPECT_DOUBLE_EQ(pools[0].probability, 0.7);
  EXPECT_DOUBLE_EQ(pools[1].probability, 0.3 * std::sqrt(2.0) / (1 + std::sqrt(2.0)));
}

TEST(SpeechMix, WithoutWeightsFoldersAreOnePool) {
  const std::int64_t sizes[] = {10, 0, 30};
  const SpeechMix mix = SpeechMix::of_folders({"a", "b", "c"});
  const auto one = pools_of(mix, sizes);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].leaves, (std::vector<int>{0, 2}));  // b has none
  EXPECT_EQ(one[0].probability, 1);
  SpeechMix even = mix;
  even.temperature = {0.5};  // by utterances, tempered
  const auto pools = pools_of(even, sizes);
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_DOUBLE_EQ(pools[0].probability, std::sqrt(10.0) / (std::sqrt(10.0) + std::sqrt(30.0)));
}

// A folder without utterances gives its share to the others of its level.
TEST(SpeechMix, EmptyFoldersTakeNoShare) {
  const std::int64_t sizes[] = {10, 0, 30};
  const auto pools = pools_of(mix_of(kNested), sizes);
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_DOUBLE_EQ(pools[1].probability, 0.3);
  EXPECT_EQ(pools[1].leaves, (std::vector<int>{2}));
}

TEST(SpeechMix, WhatIsNotUnderstoodIsNamed) {
  EXPECT_EQ(error_of(R"(["a", {"folder": "b"}])"), "");
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "data.train: a list of inputs is empty"},
      {R"([{"folder": "a", "weight": 1}, "b"])", "1 of 2 inputs of one level have a weight"},
      {R"([{"folder": "a", "weight": 0}])", "the weight 0"},
      {R"([{"folder": "a", "group": ["b"]}])", "a folder or a group"},
      {R"([{"folder": "a", "wieght": 1}])", "data.train[0].wieght"},
      {R"([{"group": [3]}])", "data.train[0].group[0] is neither"},
      {R"({"folder": "a"})", "data.train is not a list"}};
  for (const auto& [text, words] : cases)
    EXPECT_NE(error_of(text).find(words), std::string::npos) << text << ": " << error_of(text);
  EXPECT_THROW(leaves_of(mix_of(R"(["a"])", {-1})), DeckError);
}

}  // namespace
}  // namespace choir
