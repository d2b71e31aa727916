// Tests of the reader of YAML.
#include "src/core/yaml_reader.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::refusal;

TEST(Yaml, ReadsWhatPyYamlWrites) {
  const nlohmann::json read = read_yaml(
      "a: 1\nb:\n- x\n- 'it''s'\n- \"two\\n\\u00e9 \\\n  words\"\n- {k: [1, 2.5, null], 'q': {}}\n"
      "- - 1\n  - deep: yes\n    more: ~\nc:\n  d: -1.0e-05\n  e: a plain text that is folded\n"
      "    over two lines\n  f: null\n  url: nemo:0f_t.model\n  empty:\n# a comment\ng: []\n",
      "x");
  EXPECT_EQ(read, parsed_json(R"({"a": 1, "b": ["x", "it's", "two\né words",
    {"k": [1, 2.5, null], "q": {}}, [1, {"deep": "yes", "more": null}]],
    "c": {"d": -1e-5, "e": "a plain text that is folded over two lines", "f": null,
          "url": "nemo:0f_t.model", "empty": null}, "g": []})"));
  EXPECT_TRUE(read_yaml("", "x").is_null());
}

// A reader that reads the text again for each of its lines takes minutes for these files.
TEST(Yaml, LongListsAndTextsTakeAMoment) {
  constexpr int kLines = 100000;
  std::string list = "a: [x0", text = "a: \"w0", single = "a: 'w0", expected = "w0";
  for (int i = 1; i < kLines; ++i) {
    list += ",\n  x" + std::to_string(i);
    text += "\n  w" + std::to_string(i);
    single += "\n  w" + std::to_string(i);
    expected += " w" + std::to_string(i);
  }
  const auto began = std::chrono::steady_clock::now();
  const nlohmann::json items = read_yaml(list + "]\n", "x").at("a");
  EXPECT_EQ(items.size(), static_cast<std::size_t>(kLines));
  EXPECT_EQ(items.back(), "x99999");
  EXPECT_EQ(read_yaml(text + "\"\n", "x").at("a"), expected);
  EXPECT_EQ(read_yaml(single + "'\n", "x").at("a"), expected);
  EXPECT_TRUE(read_yaml("a:\n" + std::string(10 * kLines, '\n'), "x").at("a").is_null());
  // They take 0.2 s here; with the old rule 25,000 lines of them took more than 14 s.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST(Yaml, QuotesBehindAnEmptyLineOpenToo) {
  EXPECT_EQ(read_yaml("a: [x,\n\n  \"y\n  ]\", 'z'']'\n\n  ]\nb: 1\n", "x"),
            parsed_json(R"({"a": ["x", "y ]", "z']"], "b": 1})"));
  EXPECT_EQ(read_yaml("a: \"one\\\n  two\\\\\n  three\"\nb: 1\n", "x"),
            parsed_json(R"({"a": "onetwo\\ three", "b": 1})"));
}

TEST(Yaml, RefusesTheRestByItsLine) {
  const auto says = [](const std::string& text) {
    return refusal([&] { read_yaml(text, "x.yaml"); });
  };
  EXPECT_SAYS(says("a: 1\nb: &anchor 2\n"), "'x.yaml', line 2");
  EXPECT_SAYS(says("a: !!python/object/apply:os.system ['ls']\n"), "line 1");
  EXPECT_SAYS(says("a: |\n  text\n"), "line 1");
  EXPECT_SAYS(says("a: 1\na: 2\n"), "a second 'a'");
  EXPECT_SAYS(says("a: [1, 2\nb: 3\n"), "not understood");
  EXPECT_SAYS(says("a: 'x\n"), "a quote that nothing closes");
  EXPECT_SAYS(says("a: 1\n   b: 2\n"), "line 2");
  EXPECT_SAYS(says(std::string(100, '[')), "nesting deeper than 32");
  EXPECT_SAYS(says("a: \"\\ud800\"\n"), "an escape");
  std::string many = "a: [1";
  for (int i = 0; i < 300000; ++i) many += ",1";
  EXPECT_SAYS(says(many + "]\n"), "more than 262144 values");
  EXPECT_SAYS(says("a: " + std::string(std::size_t{17} << 20, 'x')),
              "'x.yaml' has more than 16 MiB");
}

}  // namespace
}  // namespace choir
