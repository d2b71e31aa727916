#include "src/data/sampling/blend.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

// Folders a (3 utterances) and b (1) share a pool with a share of a quarter; c has its own pool,
// and d is empty.
std::vector<SpeechSource> sources() {
  const std::vector<SpeechLeaf> leaves{
      {"a", {{"lang", "en"}, {"noise", "low"}}}, {"b", {{"lang", "de"}}}, {"c", {}}, {"d", {}}};
  const std::vector<SpeechItem> shared{
      {0, 0, 8000, 1}, {0, 1, 8000, 1}, {0, 2, 8000, 1}, {1, 0, 32000, 1}};
  return sources_of(leaves, SpeechBlend({{shared, 0.5}, {{{2, 0, 16000, 1}}, 1.5}}, 1), 8000);
}

TEST(SpeechSources, SharesHoursAndTags) {
  const std::vector<SpeechSource> all = sources();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_DOUBLE_EQ(all[0].share, 0.25 * 3 / 4);
  EXPECT_DOUBLE_EQ(all[1].share, 0.25 / 4);
  EXPECT_DOUBLE_EQ(all[2].share, 0.75);
  EXPECT_EQ(all[3].share, 0);
  EXPECT_DOUBLE_EQ(all[0].hours, 3.0 / 3600);
  EXPECT_DOUBLE_EQ(all[1].hours, 4.0 / 3600);
  EXPECT_EQ(all[0].utterances, 3);
  EXPECT_EQ(to_string(std::span(all).first(2)),
            "blend 18.75 % 'a': 3 utterances, 0.000833 hours, tags lang=en, noise=low\n"
            "blend 6.25 % 'b': 1 utterance, 0.00111 hours, tags lang=de");
}

TEST(SpeechSources, WhatWasDrawn) {
  const std::vector<SpeechSource> all = sources();
  EXPECT_EQ(drawn_text(all, std::vector<std::int64_t>{2, 1, 5, 0}),
            "'a' 25.0 % (of 18.8 %), 'b' 12.5 % (of 6.2 %), 'c' 62.5 % (of 75.0 %), "
            "'d' 0.0 % (of 0.0 %); by tag: lang=de 12.5 %, lang=en 25.0 %, noise=low 25.0 %");
  EXPECT_EQ(drawn_text(all, std::vector<std::int64_t>{0, 0, 0, 0}), "");
  EXPECT_EQ(drawn_text(std::span(all).first(1), std::vector<std::int64_t>{3}), "");
}

}  // namespace
}  // namespace choir
