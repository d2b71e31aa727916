// Tests of the values of data.validation: words and objects mean the same.
#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/data/speech/data_sources.hpp"

namespace choir {
namespace {

constexpr EvalWords kAll{.durations = true,
                         .batch_duration = true,
                         .tags = true,
                         .answers = true,
                         .dialogues = true,
                         .batches = true};

/// The hint and the message of the refusal of a set; "" if it is accepted.
std::string refusal(const std::string& text, EvalWords legal = kAll) {
  try {
    eval_set_of("s", text, legal);
    return {};
  } catch (const DeckError& error) {
    return std::string(error.what()) + " -> " + error.hint();
  }
}

void expect_equal(const SpeechEvalSet& a, const SpeechEvalSet& b) {
  EXPECT_EQ(a.folders, b.folders);
  EXPECT_EQ(a.tags, b.tags);
  EXPECT_EQ(a.limit, b.limit);
  EXPECT_EQ(a.batches, b.batches);
  EXPECT_EQ(a.batch_duration, b.batch_duration);
  EXPECT_EQ(a.filter.min_duration, b.filter.min_duration);
  EXPECT_EQ(a.filter.max_duration, b.filter.max_duration);
  EXPECT_EQ(a.generation.answers, b.generation.answers);
  EXPECT_EQ(a.generation.temperature, b.generation.temperature);
  EXPECT_EQ(a.generation.top_k, b.generation.top_k);
}

TEST(ValidationSets, ObjectsMeanTheSameAsWords) {
  const auto of = [](const std::string& text) { return eval_set_of("s", text, kAll); };
  expect_equal(of(R"({"folder": "data/a"})"), of("data/a"));
  expect_equal(of(R"({"folder": ["data/a", "data/b"], "limit": 7, "batches": 3})"),
               of("data/a,data/b limit=7 batches=3"));
  expect_equal(of(R"({"folder": "a", "min_duration": 0.5, "max_duration": "20",
                      "batch_duration": 30, "tags": {"lang": "en", "year": 1999}})"),
               of("a min_duration=0.5 max_duration=20 batch_duration=30 tag.lang=en "
                  "tag.year=1999"));
  expect_equal(of(R"({"folder": "a", "answers": -1})"), of("a answers=-1"));
  expect_equal(of(R"({"folder": "a", "temperature": 0.5, "top_k": 4})"),
               of("a temperature=0.5 top_k=4"));
  expect_equal(of(R"({"input_cfg": [{"folder": "a", "tags": {"lang": "en"}}, {"folder": "b"}],
                      "tags": {"lang": "de"}})"),
               of(R"([{"folder": "a", "tags": {"lang": "en"}}, {"folder": "b"}] tag.lang=de)"));
  EXPECT_EQ(of(R"({"manifest_filepath": "with blanks/val.json"})").folders,
            (std::vector<std::string>{"with blanks/val.json"}));
  EXPECT_EQ(of("a batches=all").batches, 0);
  EXPECT_FALSE(of("a").batches.has_value());
}

TEST(ValidationSets, FaultsOfObjectsAreNamed) {
  EXPECT_NE(refusal(R"({"limit": 7})").find("names no folder"), std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a", "limt": 7})").find("'limt=7' is not understood"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a", "limit": [7]})").find("data.validation.s.limit: [7]"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a", "paths": "b"})").find("names its folders twice"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a", "tags": {"x y": "z"}})").find("'x y' is not a valid name"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a")").find("data.validation.s"), std::string::npos);
  EXPECT_NE(refusal(R"({"folder": "a", "tags": {"lang": "en"}})", {}).find("'tag' has no effect"),
            std::string::npos);
  EXPECT_NE(refusal("a batches=3", {}).find("'batches' has no effect"), std::string::npos);
}

}  // namespace
}  // namespace choir
