#include "src/deck/name_patterns.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

TEST(NamePatterns, StarsAndQuestionMarks) {
  EXPECT_TRUE(matches_pattern("blocks.*.weight", "blocks.3.attention.qkv.weight"));
  EXPECT_TRUE(matches_pattern("blocks.?.*", "blocks.3.norm"));
  EXPECT_TRUE(matches_pattern("*", "head.weight"));
  EXPECT_TRUE(matches_pattern("*b*c", "abbcbc"));
  EXPECT_TRUE(matches_pattern("head.weight**", "head.weight"));
  EXPECT_FALSE(matches_pattern("head", "head.weight")) << "the whole name";
  EXPECT_FALSE(matches_pattern("blocks.?.*", "blocks.13.norm"));
  EXPECT_FALSE(matches_pattern("*.bias", "head.weight"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("", ""));
}

TEST(NamePatterns, OneThatMatchesNothingIsNamed) {
  const std::vector<std::string> names{"embedding.tokens.weight", "head.weight", "head.bias"};
  EXPECT_NO_THROW(require_matches("checkpoint.init_take", {"head.*", "*.bias"}, names));
  try {
    require_matches("checkpoint.init_take", {"head.*", "head.wieght"}, names);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(), "checkpoint.init_take: 'head.wieght' matches no parameter");
    EXPECT_NE(error.hint().find("the nearest are head.weight, head.bias"), std::string::npos)
        << error.hint();
  }
}

}  // namespace
}  // namespace choir
