// Tests of text that is printed on a terminal.
#include "src/core/output.hpp"

#include <gtest/gtest.h>

#include "src/core/json_value.hpp"

namespace choir {
namespace {

TEST(Printable, ControlSequencesBecomeVisible) {
  EXPECT_EQ(printable("\x1b]0;title\a"), "\\u001b]0;title\\u0007");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\u0000b\\u007f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("50 %\rdone"), "50 %\\rdone");
}

TEST(Printable, BidirectionalOverridesBecomeVisible) {
  EXPECT_EQ(printable("a\u202eb\u2066c\u2069d\u2028e"), "a\\u202eb\\u2066c\\u2069d\\u2028e");
}

TEST(Printable, LettersOfAllScriptsStay) {
  const std::string text = "é 漢字 \U0001F600 אב \u200d ~ \\n \"quoted\"";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_name(text), text);
}

TEST(Printable, LineEndsAndTabsStayInATextAndNotInAName) {
  EXPECT_EQ(printable("a\tb\nc\r\n"), "a\tb\nc\\r\n");
  EXPECT_EQ(printable_name("a\tb\nc\r\n"), "a\\tb\\nc\\r\\n");
}

TEST(Printable, BytesThatAreNotUtf8BecomeVisible) {
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");                    // an overlong zero
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("caf\xc3"), "caf\\xc3");                       // cut
  EXPECT_EQ(printable("\xe2\x80z"), "\\xe2\\x80z");
}

TEST(Printable, JsonKeepsItsMeaning) {
  const nlohmann::json value = {{"na\u009bme\x1b", "a\u202e\x7f\\u0041\n"}};
  const std::string text = dumped(value);
  const std::string shown = printable(text);
  EXPECT_NE(shown, text);
  EXPECT_EQ(parsed_json(shown), value);
}

TEST(Printable, NoPartOfAMessageBeginsALineOfItsOwn) {
  EXPECT_EQ(printable_message("no 'a\n[E] b'\n  -> hint"), "no 'a\n  [E] b'\n  -> hint");
}

}  // namespace
}  // namespace choir
