#include "choir/core/json_extent.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "choir/core/json.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

std::string object_of(int keys) {
  std::string text = "{";
  for (int i = 0; i < keys; ++i) text += fmt::format("{}\"k{}\":{}", i > 0 ? "," : "", i, i);
  return text + "}";
}

template <class Action>
std::string deck_error_of(Action&& action) {
  try {
    action();
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonExtent, CountsLevelsAndKeysOutsideOfStrings) {
  EXPECT_EQ(json_extent("12").depth, 0);
  EXPECT_EQ(json_extent(R"({"a": [1, {"b": 2}], "c": {}})").depth, 3);
  EXPECT_EQ(json_extent(R"({"a": [1, {"b": 2}], "c": {}})").keys, 2);
  EXPECT_EQ(json_extent(R"({"[[[[:": "\"{{{{\\"})").depth, 1);
  EXPECT_EQ(json_extent(R"({"[[[[:": "\"{{{{\\"})").keys, 1);
  EXPECT_EQ(json_extent("]]]][").depth, 1);
  EXPECT_EQ(json_extent("\"never ends [").depth, 0);
  EXPECT_EQ(json_extent(nested(1000000)).depth, 1000000);
}

TEST(JsonExtent, NamesWhatIsTooMuch) {
  EXPECT_EQ(json_excess(nested(64)), "");
  EXPECT_EQ(json_excess(nested(65)), "nested deeper than 64 levels");
  EXPECT_EQ(json_excess(object_of(10000)), "");
  EXPECT_EQ(json_excess(object_of(10001)), "10001 keys in one object, more than 10000");
}

// A quarter of a million values: with a search for the line of each from the beginning, 10^11
// steps.
TEST(JsonExtent, ALongListIsReadInOnePass) {
  std::string text = "[\n";
  for (int i = 0; i < 250000; ++i) text += "1,\n";
  text += "1]";
  const JsonDocument document = parse_json(text, "a.json");
  EXPECT_EQ(document.line_of("[0]"), 2);
  EXPECT_EQ(document.line_of("[250000]"), 250002);
}

TEST(JsonExtent, NamesOfKeysDoNotMultiply) {
  const std::string longest(4096, 'k'), longer(4097, 'k');
  EXPECT_EQ(parse_json("{\"" + longest + "\": 1}", "a.json").line_of(longest), 1);
  EXPECT_NE(deck_error_of([&] {
              parse_json("{\"" + longer + "\": 1}", "a.json");
            }).find("the names of a key and of what it is in have 4097 bytes together"),
            std::string::npos);
  // 100,000 values below a name of 4,000 bytes: of some of them the line is not kept.
  std::string list = "{\"" + std::string(4000, 'k') + "\": [";
  for (int i = 0; i < 100000; ++i) list += "1,";
  EXPECT_EQ(parse_json(list + "1]}", "a.json").place_of(std::string(4000, 'k') + "[100000]"),
            "a.json");
}

TEST(JsonExtent, ADeckWithoutEndIsNotReadToItsEnd) {
  EXPECT_NE(deck_error_of([] { read_deck_text("/dev/zero"); }).find("has more than 16 MiB"),
            std::string::npos);
}

// The distance of a word of a megabyte to a name of six letters is known without a table of it.
TEST(JsonExtent, NothingIsNearToAVeryLongWord) {
  const std::vector<std::string> names(1000, "weight");
  EXPECT_EQ(nearest_name(std::string(1000000, 'w'), names), "");
  EXPECT_EQ(nearest_name("weihgt", {"bias", "weight"}), "weight");
}

}  // namespace
}  // namespace choir
