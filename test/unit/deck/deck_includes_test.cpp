// Decks that include other decks.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/deck/deck.hpp"
#include "src/models/gpt/family.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/train/deck_case.hpp"

namespace choir {
namespace {

class DeckIncludes : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    test::write_bytes(folder_ / name, text);
  }
  Deck read(const std::string& name, const std::vector<std::string>& overrides = {}) {
    return read_deck(test::families(), folder_ / name, overrides);
  }
  std::string refusal(const std::string& name) {
    try {
      read(name);
      return "accepted";
    } catch (const DeckError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
  }
  void expect_refusal(const std::string& name, const std::vector<std::string>& words) {
    const std::string said = refusal(name);
    for (const std::string& word : words)
      EXPECT_NE(said.find(word), std::string::npos) << word << " in: " << said;
  }
  test::ScratchFolder folder_;
};

constexpr const char* kBase = R"({
  "model": {"n_layer": 2, "n_embd": 32, "n_head": 4},
  "data": {"train": ["a.txt", "b.txt"], "validation": {"one": "x", "two": "y"}},
  "train": {"max_steps": 50, "micro_batch_size": 2}
})";

TEST_F(DeckIncludes, LaterValuesReplaceEarlierOnes) {
  put("base.json", kBase);
  put("more.json", R"({"train": {"max_steps": 60}, "optimizer": {"warmup_steps": 3}})");
  put("sub/top.json", R"({"include": ["../base.json", "../more.json"],
    "model": {"n_layer": 3, "n_embd": null},
    "data": {"train": ["c.txt"], "validation": {"three": "z"}}})");
  const Deck deck = read("sub/top.json", {"optimizer.warmup_steps=7"});
  EXPECT_EQ(gpt_of(deck).n_layer, 3);
  EXPECT_EQ(gpt_of(deck).n_head, 4);
  EXPECT_EQ(gpt_of(deck).n_embd, gpt_of(Deck(test::families())).n_embd) << "null: the default";
  EXPECT_EQ(deck.train.max_steps, 60);
  EXPECT_EQ(deck.train.micro_batch_size, 2);
  EXPECT_EQ(deck.optimizer.warmup_steps, 7);
  EXPECT_EQ(deck.data.train, std::vector<std::string>{"c.txt"}) << "lists are not joined";
  EXPECT_EQ(gpt_settings(deck).validation.size(), 1u) << "nor are maps that are one value";
  EXPECT_EQ(deck.run.name, "top");
  const auto resolved = nlohmann::json::parse(resolved_json(deck));
  EXPECT_FALSE(resolved.contains("include"));
  EXPECT_EQ(resolved["decks"], (nlohmann::json{folder_ / "base.json", folder_ / "more.json",
                                               folder_ / "sub/top.json"}));
  EXPECT_EQ(deck_digest(parse_deck(test::families(), resolved_json(deck), "again.json", {})),
            deck_digest(deck));
}

TEST_F(DeckIncludes, IncludedDecksInclude) {
  put("a.json", R"({"data": {"train": ["x"]}, "train": {"max_steps": 5}})");
  put("b.json", R"({"include": "a.json", "train": {"max_steps": 6}})");
  put("c.json", R"({"include": ["b.json", "a.json"]})");
  EXPECT_EQ(read("b.json").train.max_steps, 6);
  EXPECT_EQ(read("c.json").train.max_steps, 5) << "the last one in the list";
}

TEST_F(DeckIncludes, FaultsAreNamedWhereTheyAre) {
  put("base.json", "{\n  \"train\": {\n    \"max_steps\": -1 } }");
  put("top.json", "{\n  \"include\": \"base.json\" }");
  expect_refusal("top.json", {"base.json:3", "max_steps"});
  put("typo.json", R"({"include": "base.json", "trian": {}})");
  expect_refusal("typo.json", {"typo.json:1", "trian"});
  put("none.json", R"({"include": "nosuch.json"})");
  expect_refusal("none.json", {"none.json:1", "there is no '", "nosuch.json", "relative"});
  put("wrong.json", R"({"include": 3})");
  expect_refusal("wrong.json", {"wrong.json:1", "neither the path of a deck nor a list"});
  put("broken.json", "{\n \"train\": }");
  put("of_broken.json", R"({"include": "broken.json"})");
  expect_refusal("of_broken.json", {"broken.json:2", "not valid JSON"});
  put("list.json", "[1]");
  put("of_list.json", R"({"include": "list.json"})");
  expect_refusal("of_list.json", {"list.json", "a deck is an object"});
}

TEST_F(DeckIncludes, ACycleIsRefused) {
  put("a.json", R"({"include": "sub/b.json"})");
  put("sub/b.json", R"({"include": "../a.json"})");
  expect_refusal("a.json", {"a deck includes itself", "a.json includes ", "b.json includes "});
  put("self.json", R"({"include": "./self.json"})");
  expect_refusal("self.json", {"a deck includes itself"});
}

}  // namespace
}  // namespace choir
