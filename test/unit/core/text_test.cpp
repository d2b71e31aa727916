#include "src/core/text.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

TEST(Text, EditDistanceOfKnownPairs) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("trian", "train"), 1u);  // one swap
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);       // optimal string alignment, not full Damerau
}

TEST(Text, NearestNameSuggestsMisspellingsOnly) {
  const std::vector<std::string> names{"max_steps", "micro_batch_size", "profile"};
  EXPECT_EQ(nearest_name("max_stesp", names), "max_steps");
  EXPECT_EQ(nearest_name("Micro-Batch-Sise", names), "micro_batch_size");
  EXPECT_EQ(nearest_name("zzz", names), "");
  EXPECT_EQ(nearest_name("x", {"y", "z"}), "");  // everything differs
}

TEST(Text, SplitJoinTrim) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_TRUE(split("", ',').empty());
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(trim(" \t x y\r\n"), "x y");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, PrintIntoStopsWhereThereIsNoMoreRoom) {
  char text[8];
  EXPECT_EQ(print_into(text, "step {}", 12), "step 12");
  EXPECT_STREQ(text, "step 12");
  EXPECT_EQ(print_into(text, "step {}: {}", 12, "forward"), "step 12");
  EXPECT_STREQ(text, "step 12");
}

TEST(Text, WrapKeepsEveryWordAndTheWidth) {
  EXPECT_EQ(wrap("aa bb cc dd", 7, 2), "  aa bb\n  cc dd\n");
  EXPECT_EQ(wrap("", 10, 2), "");
  EXPECT_EQ(wrap("a-word-too-long", 5, 1), " a-word-too-long\n");
}

}  // namespace
}  // namespace choir
