#include "src/data/vocabulary/utf8.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

TEST(Utf8Stream, HoldsBackWhatIsNotWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80\xC3"), "\U0001F600");
  EXPECT_EQ(stream.push("\xA9"), "\u00e9");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatCannotBecomeACharacter) {
  EXPECT_EQ(whole_utf8("a\xFF\xFE"
                       "b"),
            "a\uFFFD\uFFFDb");
  EXPECT_EQ(whole_utf8("\xE2\x82("), "\uFFFD(");  // one for the longest incomplete character
  EXPECT_EQ(whole_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(whole_utf8("x\xF0\x9F\x98"), "x\uFFFD");
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xC3"), "");
  EXPECT_EQ(stream.push("("), "\uFFFD(");
}

TEST(Utf8Stream, GivesTheSameByteByByte) {
  const std::string bytes = "\u65e5\u672c \xE3\x81 \xF0\x9F\x98\x80\x80z\xC3";
  Utf8Stream stream;
  std::string text;
  for (const char c : bytes) text += stream.push(std::string_view(&c, 1));
  EXPECT_EQ(text + stream.finish(), whole_utf8(bytes));
}

}  // namespace
}  // namespace choir
