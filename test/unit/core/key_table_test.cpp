#include "choir/core/key_table.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/core/json_document.hpp"

namespace choir {
namespace {

enum class Colour { green, red };
constexpr auto words_of(Colour) {
  return choir::words<Colour>({{Colour::red, "red"}, {Colour::green, "green"}});
}
struct Part {
  int count = 3;
  double rate = 0.5;
  bool on = true;
  std::string text = "x";
  std::vector<std::string> list, numbers;
  TextMap map;
  TextOrMap either;
  Colour colour = Colour::green;
  double time = 0;
  std::int64_t ranks = 0;
  int width = 0;
};
struct Thing {
  Part part;
  std::string top = "a";
};

KeyTable<Thing> make_table() {
  KeyTable<Thing> table;
  auto part = table.section("part", &Thing::part);
  part.add("count", &Part::count, "apples", "How many.").at_least(1).at_most(9);
  part.add("rate", &Part::rate, "", "A rate.").above(0).below(1);
  part.add("on", &Part::on, "", "A switch.");
  part.add("text", &Part::text, "", "A text.");
  part.add("list", &Part::list, "", "A list.");
  part.add("numbers", &Part::numbers, "", "Numbers.").or_json();
  part.add("map", &Part::map, "", "A map.");
  part.add("either", &Part::either, "", "One text or several.");
  part.add("colour", &Part::colour, "", "A colour.").not_yet({"blue"});
  part.add("time", &Part::time, "seconds", "A time.").in_seconds().at_least(0);
  part.add("ranks", &Part::ranks, "", "Ranks.").or_word("auto").at_least(0);
  part.add("width", &Part::width, "", "A width.").at_least(0);
  table.top().add("top", &Thing::top, "", "Top.").one_of({"a", "b"});
  table.foreign(
      {{"apple_count", "part.count", "Grocer"}, {"peel", "needs no peeling here", "Grocer"}});
  return table;
}

struct Result {
  Thing thing;
  KeyOrigins origins;
  std::vector<KeyProblem> problems;
};

Result read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto table = make_table();
  Result result;
  table.read(result.thing, parse_json(text, "t.json"), result.origins, result.problems);
  table.override_with(result.thing, overrides, result.origins, result.problems);
  return result;
}

/// The complaint_of_table if there is exactly one; otherwise all of them.
std::string complaint_of_table(const std::string& text,
                               const std::vector<std::string>& overrides = {}) {
  const Result result = read(text, overrides);
  std::string all;
  for (const KeyProblem& problem : result.problems) all += (all.empty() ? "" : "\n") + problem.text;
  return all;
}

TEST(KeyTable, FillsEveryType) {
  const Result r = read(R"({"part": {"count": 4, "rate": 0.25, "on": false, "text": "hello",
      "list": ["p", "q"], "map": {"k": "v", "n": 8}, "colour": "red", "time": "01:02:03",
      "ranks": "auto"}, "top": "b"})");
  EXPECT_TRUE(r.problems.empty()) << r.problems.front().text;
  EXPECT_EQ(r.thing.part.count, 4);
  EXPECT_EQ(r.thing.part.rate, 0.25);
  EXPECT_FALSE(r.thing.part.on);
  EXPECT_EQ(r.thing.part.text, "hello");
  EXPECT_EQ(r.thing.part.list, (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(r.thing.part.map, (TextMap{{"k", "v"}, {"n", "8"}}));
  EXPECT_EQ(r.thing.part.colour, Colour::red);
  EXPECT_EQ(r.thing.part.time, 3723);
  EXPECT_EQ(r.thing.part.ranks, 0);
  EXPECT_EQ(r.thing.top, "b");
  EXPECT_EQ(r.origins.at("part.count").place, "t.json:1");
  EXPECT_EQ(r.origins.at("part.colour").place, "t.json:2");
}

TEST(KeyTable, OverridesWinAndAreTypedByTheKey) {
  const Result r =
      read(R"({"part": {"count": 4}})",
           {"part.count=5", "part.text=7", "part.list=a,b", "part.map.k=1", "part.time=90",
            "part.on=false", "part.ranks=auto", "part.colour=red", "top=\"b\""});
  EXPECT_TRUE(r.problems.empty()) << r.problems.front().text;
  EXPECT_EQ(r.thing.part.count, 5);
  EXPECT_EQ(r.thing.part.text, "7");
  EXPECT_EQ(r.thing.part.list, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.thing.part.map, (TextMap{{"k", "1"}}));
  EXPECT_EQ(r.thing.part.time, 90);
  EXPECT_EQ(r.thing.top, "b");
  EXPECT_EQ(r.origins.at("part.count").source, KeySource::command);
}

TEST(KeyTable, WrongTypesAreNamed) {
  EXPECT_EQ(complaint_of_table(R"({"part": {"count": "four"}})"),
            "t.json:1: part.count = \"four\": expected an integer, not text");
  EXPECT_EQ(complaint_of_table("{\"part\": {\n\"count\": 4.0}}"),
            "t.json:2: part.count = 4.0: expected an integer, not a number with a decimal point or "
            "an exponent; write 4");
  EXPECT_EQ(
      complaint_of_table(R"({"part": {"on": "True"}})"),
      "t.json:1: part.on = \"True\": expected true or false, not text; write true without quotes, "
      "lower case");
  EXPECT_EQ(complaint_of_table(R"({"part": {"on": 1}})"),
            "t.json:1: part.on = 1: expected true or false, not an integer; write true without "
            "quotes, lower case");
  EXPECT_EQ(complaint_of_table(R"({"part": {"rate": null}})"), "") << "as if it were not given";
  EXPECT_EQ(complaint_of_table(R"({"part": {"list": [1]}})"),
            "t.json:1: part.list = [1]: expected a list of texts, not a list");
  EXPECT_EQ(complaint_of_table(R"({"part": {"time": "1x"}})"),
            "t.json:1: part.time = \"1x\": expected seconds or \"HH:MM:SS\", not text");
  EXPECT_EQ(complaint_of_table(R"({"part": {"ranks": "all"}})"),
            "t.json:1: part.ranks = \"all\": expected an integer or \"auto\", not text");
  EXPECT_EQ(complaint_of_table(R"({"part": 3})"),
            "t.json:1: 'part' is a section: expected an object, not an integer");
}

// Their texts keep the digits of the document, and go out as numbers.
TEST(KeyTable, ListsOfNumbers) {
  const auto table = make_table();
  const Result r = read(R"({"part": {"numbers": [1, 2.50, "3e1"]}})");
  EXPECT_TRUE(r.problems.empty()) << r.problems.front().text;
  EXPECT_EQ(r.thing.part.numbers, (std::vector<std::string>{"1", "2.5", "3e1"}));
  const std::string resolved = table.resolved(r.thing, r.origins);
  EXPECT_EQ(nlohmann::json::parse(resolved)["part"]["numbers"], (nlohmann::json{1, 2.5, 30.0}));
  EXPECT_EQ(read(resolved).thing.part.numbers, (std::vector<std::string>{"1", "2.5", "30.0"}));
  EXPECT_EQ(read("{}", {"part.numbers=[4,5]"}).thing.part.numbers,
            (std::vector<std::string>{"4", "5"}));
  EXPECT_EQ(complaint_of_table(R"({"part": {"numbers": [true]}})"),
            "t.json:1: part.numbers = [true]: expected a list of numbers, not a list");
}

TEST(KeyTable, OneTextOrSeveral) {
  const auto table = make_table();
  const TextOrMap one = "runs/a", several = TextMap{{"x.*", "runs/a"}, {"y.*", "runs/b"}};
  EXPECT_EQ(read(R"({"part": {"either": "runs/a"}})").thing.part.either, one);
  EXPECT_EQ(read("{}", {"part.either=runs/a"}).thing.part.either, one);
  EXPECT_EQ(read("{}", {"part.either=\"runs/a\""}).thing.part.either, one);
  const std::string file = R"({"part": {"either": {"x.*": "runs/a", "y.*": "runs/b"}}})";
  for (const Result& r :
       {read(file), read("{}", {R"(part.either={"x.*":"runs/a","y.*":"runs/b"})"}),
        read("{}", {"part.either.x.*=runs/a", "part.either.y.*=runs/b"})}) {
    ASSERT_TRUE(r.problems.empty()) << r.problems.front().text;
    EXPECT_EQ(r.thing.part.either, several);
    const Result again = read(table.resolved(r.thing, r.origins));
    EXPECT_TRUE(again.problems.empty());
    EXPECT_EQ(again.thing.part.either, several);
  }
  EXPECT_EQ(nlohmann::json::parse(table.resolved(Thing(), {}))["part"]["either"], "");
  EXPECT_EQ(complaint_of_table(R"({"part": {"either": ["a"]}})"),
            "t.json:1: part.either = [\"a\"]: expected text or an object of texts, not a list");
  EXPECT_EQ(complaint_of_table(R"({"part": {"either": "runs/a"}})", {"part.either.x.*=runs/b"}),
            "command line: part.either is one text, \"runs/a\", which has no entries; give it "
            "whole");
}

TEST(KeyTable, RangesAndNames) {
  EXPECT_EQ(complaint_of_table(R"({"part": {"count": 10}})"),
            "t.json:1: part.count = 10 is out of range; legal: 1 <= value <= 9");
  EXPECT_EQ(complaint_of_table(R"({"part": {"rate": 1}})"),
            "t.json:1: part.rate = 1 is out of range; legal: 0 < value < 1");
  EXPECT_EQ(complaint_of_table("{}", {"part.rate=0"}),
            "command line: part.rate = 0 is out of range; legal: 0 < value < 1");
  EXPECT_EQ(complaint_of_table(R"({"part": {"colour": "gren"}})"),
            "t.json:1: part.colour = \"gren\" is not one of: red, green; did you mean 'green'?");
  EXPECT_EQ(complaint_of_table(R"({"part": {"colour": "blue"}})"),
            "t.json:1: part.colour = \"blue\" is not yet supported; legal now: red, green");
  EXPECT_NE(complaint_of_table(R"({"part": {"ranks": 99999999999999999999}})"), "");
  EXPECT_EQ(complaint_of_table(R"({"part": {"ranks": 9223372036854775808}})"),
            "t.json:1: part.ranks = 9223372036854775808 is too large for an integer; legal: value "
            ">= 0, value <= 9223372036854775807");
  EXPECT_EQ(complaint_of_table(R"({"part": {"width": 9223372036854775807}})"),
            "t.json:1: part.width = 9223372036854775807 is out of range; legal: value >= 0, value "
            "<= 2147483647");
}

TEST(KeyTable, WhatIsNotUtf8IsRefused) {
  EXPECT_NE(complaint_of_table("{}", {"part.text=caf\xe9"}).find("is not UTF-8"),
            std::string::npos);
  EXPECT_EQ(complaint_of_table("{}", {"part.text=caf\xc3\xa9"}), "");
}

TEST(KeyTable, UnknownKeysGetTheNearestLegalOne) {
  EXPECT_EQ(complaint_of_table(R"({"part": {"coutn": 1}})"),
            "t.json:1: unknown key 'part.coutn'; did you mean 'part.count'?");
  EXPECT_EQ(complaint_of_table(R"({"count": 1})"),
            "t.json:1: unknown key 'count'; the key is 'part.count'");
  EXPECT_EQ(complaint_of_table(R"({"prat": {"count": 1}})"),
            "t.json:1: unknown key 'prat'; did you mean the section 'part'?");
  EXPECT_EQ(complaint_of_table(R"({"part": {"apple-count": 1}})"),
            "t.json:1: unknown key 'part.apple-count'; what Grocer calls 'apple_count' is "
            "'part.count' here");
  EXPECT_EQ(complaint_of_table("{}", {"peel=1"}),
            "command line: unknown key 'peel'; a name of Grocer: needs no peeling here");
  EXPECT_NE(
      complaint_of_table(R"({"part": {"zzzzzz": 1}})").find("keys of this section: count, rate"),
      std::string::npos);
  EXPECT_NE(complaint_of_table(R"({"part.count": 1})").find("sections are objects"),
            std::string::npos);
}

TEST(KeyTable, BadOverrides) {
  EXPECT_EQ(complaint_of_table("{}", {"part.count"}),
            "command line: 'part.count' is not of the form key.path=value");
  EXPECT_EQ(complaint_of_table("{}", {"part.count=4", "part.count=5"}),
            "command line: part.count is given twice; remove one of them");
  EXPECT_EQ(complaint_of_table("{}", {"part=4"}), "command line: 'part' is a section, not a key");
  EXPECT_EQ(complaint_of_table("{}", {"part.count="}),
            "command line: part.count = \"\": expected an integer, not text");
}

TEST(KeyTable, AllProblemsComeTogetherInTheOrderOfTheFile) {
  const Result r = read("{\"part\": {\n\"rate\": 2,\n\"count\": 0},\n\"nothing\": 1}", {"top=c"});
  ASSERT_EQ(r.problems.size(), 4u);
  EXPECT_EQ(r.thing.part.count, 3) << "a refused value must not be set";
  try {
    throw_problems(r.problems, "t.json");
    FAIL();
  } catch (const DeckError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind("t.json: 4 errors\n  t.json:2: part.rate", 0), 0u) << text;
    EXPECT_LT(text.find("part.count"), text.find("nothing"));
    EXPECT_LT(text.find("nothing"), text.find("command line: top"));
  }
}

TEST(KeyTable, ResolvedReadsBackWithItsSources) {
  const auto table = make_table();
  Result first = read(R"({"part": {"count": 4, "time": 5}})", {"top=b"});
  first.thing.part.ranks = 7;
  first.origins["part.ranks"] = {KeySource::derived, ""};
  const std::string text = table.resolved(first.thing, first.origins);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["part"]["count"], 4);
  EXPECT_EQ(json["sources"]["part.count"], "file");
  EXPECT_EQ(json["sources"]["top"], "override");
  EXPECT_EQ(json["sources"]["part.rate"], "default");
  EXPECT_EQ(json["part"]["ranks"], "auto");     // computed: the key keeps its default ...
  EXPECT_EQ(json["derived"]["part.ranks"], 7);  // ... and the value is stored here

  const Result again = read(text);
  EXPECT_TRUE(again.problems.empty()) << again.problems.front().text;
  EXPECT_EQ(again.thing.part.count, 4);
  EXPECT_EQ(again.thing.top, "b");
  EXPECT_EQ(again.origins.count("part.rate"), 0u) << "a default stays a default";
  EXPECT_EQ(again.origins.at("top").source, KeySource::file);

  // An edited value counts although its source still says "default".
  auto edited = json;
  edited["part"]["rate"] = 0.75;
  const Result changed = read(edited.dump());
  EXPECT_EQ(changed.thing.part.rate, 0.75);
  EXPECT_EQ(changed.origins.at("part.rate").source, KeySource::file);
  edited["sources"]["part.rat"] = "default";
  EXPECT_NE(complaint_of_table(edited.dump()).find("sources: unknown key 'part.rat'"),
            std::string::npos);
}

TEST(KeyTable, DescribesItselfAndItsSchema) {
  const auto table = make_table();
  const std::string text = table.describe();
  for (const char* part : {"part.count", "integer, default 3, apples; 1 <= value <= 9", "How many.",
                           "red | green (not yet: blue)", "default \"auto\"", "(no section)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const auto schema = nlohmann::json::parse(table.schema("thing"));
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  const auto& part = schema["properties"]["part"];
  EXPECT_EQ(part["additionalProperties"], false);
  EXPECT_EQ(part["properties"]["count"]["minimum"], 1);
  EXPECT_EQ(part["properties"]["rate"]["exclusiveMaximum"], 1.0);
  EXPECT_EQ(part["properties"]["colour"]["enum"], (nlohmann::json{"red", "green"}));
  EXPECT_EQ(part["properties"].size(), 12u);
}

TEST(KeyTable, Durations) {
  EXPECT_EQ(parse_hms("00:30:00"), 1800);
  EXPECT_EQ(parse_hms("100:00:01"), 360001);
  EXPECT_EQ(parse_hms("02:05"), 125);
  EXPECT_EQ(parse_hms("90"), 90);
  EXPECT_EQ(parse_hms("2m"), 120);
  EXPECT_EQ(parse_hms("1h30m"), 5400);
  EXPECT_EQ(parse_hms("1d12h"), 129600);
  EXPECT_EQ(parse_hms("1-00:00:00"), 86400);
  EXPECT_EQ(parse_hms("2-12"), 216000);
  EXPECT_EQ(parse_hms("1-02:30"), 95400);
  for (const char* bad : {"m", "2x", "30m1h", "1-", "-1", "1-2-3", "1h30", "1-00:60"})
    EXPECT_FALSE(parse_hms(bad)) << bad;
  for (const char* bad : {"", "1:60:00", "1:2:3:4", "-1", ":30", "1.5"})
    EXPECT_FALSE(parse_hms(bad)) << bad;
  EXPECT_EQ(format_hms(3723), "01:02:03");
}

}  // namespace
}  // namespace choir
