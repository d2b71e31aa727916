#include "src/core/json_value.hpp"

#include <gtest/gtest.h>

#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "test/support/growth.hpp"
#include "test/support/has.hpp"
#include "test/support/peak_memory.hpp"

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
std::string refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(JsonText, AKeyThatIsGivenTwiceIsNamedWithBothPositions) {
  const auto both = [](const std::string& text) {
    const std::string plain = refusal_of([&] { read_json(text, "a.json"); });
    EXPECT_EQ(plain, refusal_of([&] { read_ordered_json(text, "a.json"); }));
    return plain;
  };
  EXPECT_EQ(both(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})"), "");
  EXPECT_EQ(both(R"({"a": 1, "b": 2, "a": 3})"),
            "a.json:1:18: key 'a' is given twice (first in column 2)");
  EXPECT_EQ(both("{\"o\": {\n \"x\": {\"a\": 1},\n  \"b\": 2, \"x\": 3}}"),
            "a.json:3:11: key 'o.x' is given twice (first on line 2, column 2)");
  EXPECT_EQ(both(R"([1, {"b": {"x": 1, "x": 1}}])"),
            "a.json:1:20: key '[1].b.x' is given twice (first in column 12)");
  // The text is written in another style, with quotes and backslashes in it.
  EXPECT_EQ(both(R"({"b": 1, "\u0062": 1})"),
            "a.json:1:10: key 'b' is given twice (first in column 2)");
  EXPECT_EQ(both(R"({"\\\"": 1, "\\\"": 1})"),
            "a.json:1:13: key '\\\\\\\"' is given twice (first in column 2)");
  EXPECT_EQ(refusal_of([] { read_json_line(R"({"a":1,"a":2})", "m.jsonl:7"); }),
            "m.jsonl:7:8: key 'a' is given twice (first in column 2)");
  EXPECT_EQ(refusal_of([] { read_ordered_json_line(R"({"a":1,"a":2})", "m.jsonl:7"); }),
            "m.jsonl:7:8: key 'a' is given twice (first in column 2)");
}

TEST(JsonText, MalformedTextHasAPositionAndAPlainCause) {
  const std::vector<std::pair<std::string, std::string>> broken{
      {"", "1:1: not valid JSON: the text ends too early"},
      {"{\"a\": 1,\n", "2:1: not valid JSON: the text ends too early"},
      {"{\"a\" 1}", "where ':' is required"},
      {"{\"a\": 1 \"b\": 2}", "unexpected text in quotes where ',' or '}' is required"},
      {"[1 2]", "unexpected number where ',' or ']' is required"},
      {"{\"a\": 1,}", "unexpected '}' where a key in double quotes is required"},
      {"{a: 1}", "an unknown word or character where a key in double quotes is required"},
      {"[nul]", "an unknown word or character"},
      {"[NaN]", "NaN and Infinity are no numbers of JSON"},
      {"{\"a\": -Infinity}", "NaN and Infinity are no numbers of JSON"},
      {"{} {}", "the document is followed by more text"},
      {"[01]", "where ',' or ']' is required"},
      {"[1.]", "a number is malformed"},
      {"[1e999]", "a number is too large"},
      {"[\"a\nb\"]", "a control character stands in a text"},
      {"[\"\xff\"]", "a text contains bytes that are not UTF-8"},
      {"[\"\\ud800\"]", "half of a surrogate pair"},
      {"[\"\\u12\"]", "\\u is not followed by four hexadecimal digits"},
      {"[\"\\q\"]", "a backslash is followed by an unknown character"},
      {"[\"abc", "a text has no closing quote"},
      // The library's own message does not decide which cause is reported.
      {"[invalid number; ill-formed UTF-8; missing closing quote]",
       "an unknown word or character"}};
  for (const auto& [text, cause] : broken) {
    const std::string said = refusal_of([&] { read_json(text, "a.json"); });
    EXPECT_TRUE(test::has(said, "a.json:")) << text;
    EXPECT_TRUE(test::has(said, "not valid JSON: ")) << text;
    EXPECT_TRUE(test::has(said, cause)) << text;
    for (const char* foreign : {"exception", "parse error", "syntax error", "last read", "literal"})
      EXPECT_FALSE(test::has(said, foreign)) << text;
    EXPECT_EQ(said, refusal_of([&] { read_ordered_json(text, "a.json"); }));
  }
}

TEST(JsonText, DepthAndWidthHaveLimits) {
  EXPECT_EQ(refusal_of([] { read_json(nested(64), "a"); }), "");
  EXPECT_EQ(refusal_of([] { read_json(nested(65), "a"); }), "a:1:65: nested deeper than 64 levels");
  EXPECT_EQ(refusal_of([] { read_json(std::string(1000000, '['), "a"); }),
            "a:1:65: nested deeper than 64 levels");
  EXPECT_EQ(refusal_of([] { read_ordered_json(object_of(10000), "a"); }), "");
  EXPECT_TRUE(test::has(refusal_of([] { read_ordered_json(object_of(10001), "a"); }),
                        "more than 10000 keys in one object"));
  EXPECT_EQ(read_json(object_of(20000), "a", {.keys = kAnyNumberOfKeys}).size(), 20000u);
}

TEST(JsonText, TimeGrowsWithTheNumberOfKeys) {
  const auto seconds = [](int keys) {
    const std::string text = object_of(keys);
    return test::least_seconds([&] { read_ordered_json(text, "a", {.keys = kAnyNumberOfKeys}); });
  };
  EXPECT_LT(test::growth("keys of a JSON object", seconds(80000), seconds(10000)),
            test::kEightfoldInput);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Any text is read with at most 12 times its size, or refused.
TEST(JsonText, MemoryIsAMultipleOfTheText) {
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  const auto repeated = [](const std::string& part, const std::string& open,
                           const std::string& close) {
    std::string text = open;
    while (text.size() < kBytes) text += part;
    text.pop_back();
    return text + close;
  };
  std::string keys = "{";
  for (int i = 0; keys.size() < kBytes; ++i)
    keys += fmt::format("{}\"{:x}\":1", i > 0 ? "," : "", i);
  for (const std::string& text :
       {repeated("1,", "[", "]"), repeated("{},", "[", "]"), repeated("[],", "[", "]"),
        repeated("\"a\",", "[", "]"), repeated("\"0123456789abcdef\",", "[", "]"),
        repeated("{\"a\":1},", "[", "]"), keys + "}", "\"" + std::string(kBytes, 'x') + "\""}) {
    for (const bool ordered : {false, true}) {
      const long grown = test::peak_growth([&] {
        const std::string copy = text;  // the text counts, too
        try {
          const JsonLimits limits{.keys = kAnyNumberOfKeys};
          if (ordered)
            read_ordered_json(copy, "a", limits);
          else
            read_json(copy, "a", limits);
        } catch (const JsonError& error) {
          if (error.fault().cause.find("MiB of memory") == std::string::npos) _exit(1);
        }
      });
      EXPECT_GE(grown, 0) << text.substr(0, 20);
      EXPECT_LE(grown, static_cast<long>(12 * text.size())) << text.substr(0, 20) << ordered;
    }
  }
}
#endif

TEST(JsonText, TablesAreNotKept) {
  struct Sum : JsonTables {
    std::vector<std::string> paths() const override { return {"a.table", "list"}; }
    void add(std::size_t table, const std::string& key, const nlohmann::json& value) override {
      said += fmt::format("{}{}={} ", table, key, dumped(value));
      if (table == 0 && key == last) twice = key;
      last = key;
    }
    std::optional<std::string> end(std::size_t table) override {
      said += "end ";
      return table == 0 ? twice : std::nullopt;
    }
    std::string said, last = "-";
    std::optional<std::string> twice;
  };
  Sum sum;
  const auto rest = read_json_tables(
      R"({"list":[["x","y"],{"z":[1]}],"a":{"b":2,"table":{"k":1,"l":"m"}},"table":{"n":3}})", "t",
      {}, sum);
  EXPECT_EQ(dumped(rest), R"({"a":{"b":2,"table":{}},"list":[],"table":{"n":3}})");
  EXPECT_EQ(sum.said, R"(1=["x","y"] 1={"z":[1]} end 0k=1 0l="m" end )");
  EXPECT_EQ(refusal_of([&] { read_json_tables(R"({"a":{"table":{"k":1,"k":2}}})", "t", {}, sum); }),
            "t:1:22: key 'a.table.k' is given twice (first in column 16)");
}

// A quarter of a million values: if the line of each were searched from the beginning, 10^11 steps.
TEST(JsonText, ALongListIsReadInOnePass) {
  std::string text = "[\n";
  for (int i = 0; i < 250000; ++i) text += "1,\n";
  text += "1]";
  const JsonDocument document = parse_json(text, "a.json");
  EXPECT_EQ(document.line_of("[0]"), 2);
  EXPECT_EQ(document.line_of("[250000]"), 250002);
}

TEST(JsonText, NamesOfKeysDoNotMultiply) {
  const std::string longest(4096, 'k'), longer(4097, 'k');
  EXPECT_EQ(parse_json("{\"" + longest + "\": 1}", "a.json").line_of(longest), 1);
  EXPECT_TRUE(test::has(refusal_of([&] { parse_json("{\"" + longer + "\": 1}", "a.json"); }),
                        "the names of a key and of what it is in have 4097 bytes together"));
  // 100,000 values below a name of 4,000 bytes: the lines of some of them are not kept.
  std::string list = "{\"" + std::string(4000, 'k') + "\": [";
  for (int i = 0; i < 100000; ++i) list += "1,";
  EXPECT_EQ(parse_json(list + "1]}", "a.json").place_of(std::string(4000, 'k') + "[100000]"),
            "a.json");
}

TEST(JsonText, ADeckWithoutEndIsNotReadToItsEnd) {
  EXPECT_TRUE(test::has(refusal_of([] { read_deck_text("/dev/zero"); }), "has more than 16 MiB"));
}

// The distance between a word of a megabyte and a name of six letters is computed without a table
// of it.
TEST(JsonText, NothingIsNearToAVeryLongWord) {
  const std::vector<std::string> names(1000, "weight");
  EXPECT_EQ(nearest_name(std::string(1000000, 'w'), names), "");
  EXPECT_EQ(nearest_name("weihgt", {"bias", "weight"}), "weight");
}

}  // namespace
}  // namespace choir
