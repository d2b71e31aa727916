#include "src/core/json_document.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "test/support/has.hpp"

namespace choir {
namespace {

using test::has;

/// The message of parse_json about a text, with its hint; "" if it accepts the text.
std::string complaint_of_json(const std::string& text) {
  try {
    parse_json(text, "a.json");
  } catch (const DeckError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return std::string(error.what()) + "\n" + error.hint();
  }
  return {};
}

TEST(Json, AcceptsCommentsAndKnowsLines) {
  const JsonDocument document = parse_json(
      "// head\n{\n  \"a\": 1, /* two\nlines */ \"b\": { \"c\": [1,\n 22\n], \"d\": true } }\n",
      "a.json");
  EXPECT_EQ(document.root().at("b").at("c").at(1), 22);
  EXPECT_EQ(document.line_of("a"), 3);
  EXPECT_EQ(document.line_of("b"), 4);
  EXPECT_EQ(document.line_of("b.c[0]"), 4);
  EXPECT_EQ(document.line_of("b.c[1]"), 5);  // the newline after a number is not part of its line
  EXPECT_EQ(document.line_of("b.d"), 6);
  EXPECT_EQ(document.line_of("b.x"), 0);
  EXPECT_EQ(document.place_of("b.d"), "a.json:6");
  EXPECT_EQ(document.place_of("nothing"), "a.json");
}

TEST(Json, KeepsTheKindsOfNumbersApart) {
  const JsonDocument document = parse_json("[1, -1, 1.0, 1e3, 18446744073709551615]", "a.json");
  EXPECT_TRUE(document.root()[0].is_number_unsigned());
  EXPECT_TRUE(document.root()[1].is_number_integer());
  EXPECT_TRUE(document.root()[2].is_number_float());
  EXPECT_TRUE(document.root()[3].is_number_float());
  EXPECT_EQ(document.root()[4].get<std::uint64_t>(), 18446744073709551615u);
}

TEST(Json, DuplicateKeyNamesPathAndBothLines) {
  const std::string said = complaint_of_json("{\"train\": {\n \"x\": 1,\n  \"x\": 2}}");
  EXPECT_TRUE(has(said, "a.json:3:3: key 'train.x' is given twice (first on line 2, column 2)"));
  EXPECT_TRUE(has(said, "|   \"x\": 2}}"));
  EXPECT_EQ(complaint_of_json("{\"a\": {\"x\": 1}, \"b\": {\"x\": 1}}"), "");  // another object
}

TEST(Json, MalformedTextNamesLineColumnAndShowsTheLine) {
  const std::string said = complaint_of_json("{\n  \"a\": 1,\n}\n");
  EXPECT_TRUE(has(said, "a.json:3:1: not valid JSON: unexpected '}'"));
  EXPECT_TRUE(has(said, "\n  | }\n  | ^"));
  EXPECT_TRUE(has(said, "remove the comma before the closing bracket"));
  EXPECT_EQ(said.find("json.exception"), std::string::npos) << said;
}

TEST(Json, RefusesEveryKindOfDamage) {
  for (const char* text :
       {"",    "  \n",  "{",       "{\"a\"}", "{\"a\":}", "[1 2]",    "{a: 1}",   "{'a': 1}",
        "nul", "{} {}", "{} x",    "\"\\q\"", "01",       "+1",       ".5",       "1.",
        "NaN", "[1,]",  "/* open", "\"open",  "1e999",    "\"\xff\"", "{\"a\":1]"})
    EXPECT_NE(complaint_of_json(text), "") << text;
}

TEST(Json, RefusesDeepNestingWithoutOverflowingTheStack) {
  EXPECT_EQ(complaint_of_json(std::string(60, '[') + std::string(60, ']')), "");
  EXPECT_TRUE(has(complaint_of_json(std::string(100000, '[')), "nested deeper than 64 levels"));
}

TEST(Json, LongLinesAreShortenedAroundThePlace) {
  const std::string said = complaint_of_json("{\"a\": \"" + std::string(500, 'x') + "\" 1}");
  EXPECT_LT(said.size(), 500u);
  EXPECT_TRUE(has(said, "a.json:1:510:"));
}

TEST(Json, MissingEmptyAndUnreadableFiles) {
  const auto said = [](const std::string& path) -> std::string {
    try {
      read_deck_text(path);
    } catch (const DeckError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_TRUE(
      has(said("no/such/deck.json"), "cannot read the deck 'no/such/deck.json': No such file"));
  EXPECT_TRUE(has(said("/"), "is a directory"));
  const std::string path = testing::TempDir() + "empty_deck.json";
  std::ofstream(path) << " \n";
  EXPECT_TRUE(has(said(path), "is empty"));
  std::ofstream(path) << "{}\n";
  EXPECT_EQ(read_deck_text(path), "{}\n");
  unlink(path.c_str());
}

}  // namespace
}  // namespace choir
