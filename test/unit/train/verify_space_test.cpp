// Layouts as text and as decks, and the set of them that is run.
#include "choir/train/verify_space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "choir/core/error.hpp"
#include "choir/train/verify.hpp"

namespace choir {
namespace {

const char* const kText = R"({
  "model": {"n_layer": 4, "n_head": 8, "n_kv_head": 2, "n_embd": 32, "block_size": 24,
            "vocab_size": 61},
  "data": {"format": "synthetic"},
  "train": {"micro_batch_size": 1, "global_batch_size": 24}
})";

Deck deck(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> notes;
  return verify_deck(parse_deck(kText, "deck.json", overrides), "fp64", notes);
}

using Value = std::pair<int, std::string>;
using Pair = std::pair<Value, Value>;

std::set<Value> values_of(const VerifyLayout& layout) {
  std::set<Value> values;
  for (int a = 0; a < kLayoutAxes; ++a) values.insert({a, layout[static_cast<LayoutAxis>(a)]});
  return values;
}

std::set<Value> values_of(const std::vector<VerifyLayout>& layouts) {
  std::set<Value> all;
  for (const VerifyLayout& layout : layouts) all.merge(values_of(layout));
  return all;
}

std::set<Pair> pairs_of(const std::vector<VerifyLayout>& layouts) {
  std::set<Pair> pairs;
  for (const VerifyLayout& layout : layouts)
    for (const Value& a : values_of(layout))
      for (const Value& b : values_of(layout))
        if (a < b) pairs.insert({a, b});
  return pairs;
}

std::string message_of(const std::string& layouts) {
  try {
    parse_layouts(layouts);
  } catch (const DeckError& error) {
    return std::string(error.what()) + " " + error.hint();
  }
  return "";
}

TEST(VerifyLayout, IsPrintedAndReadBack) {
  VerifyLayout layout;
  EXPECT_EQ(layout.to_string(), "dp=1 tp=1 pp=1 cp=1");
  layout[LayoutAxis::tensor] = "4";
  layout[LayoutAxis::data] = "2";
  layout[LayoutAxis::sequence] = "true";
  layout[LayoutAxis::order] = "dp-tp-cp-pp";
  EXPECT_EQ(layout.to_string(), "dp=2 tp=4 pp=1 cp=1 sequence=true order=dp-tp-cp-pp");
  EXPECT_EQ(layout.ranks(), 8);
  EXPECT_EQ(parse_layouts(layout.to_string()), std::vector{layout});
  const auto two = parse_layouts("  tp=2  sequence=true , dp=3 zero=1 ");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].to_string(), "dp=1 tp=2 pp=1 cp=1 sequence=true");
  EXPECT_EQ(two[1].to_string(), "dp=3 tp=1 pp=1 cp=1 zero=1");
}

TEST(VerifyLayout, WordsNobodyKnowsAreRefusedWithTheLegalOnes) {
  for (const char* wrong : {"dp=2 speed=9", "dq=2", "dp"}) {
    const std::string message = message_of(wrong);
    EXPECT_NE(message.find("legal words: dp=, tp=, pp=, cp=, sequence="), std::string::npos)
        << wrong << ": " << message;
  }
  EXPECT_NE(message_of("dp=two").find("'two' is no number of ranks"), std::string::npos);
  EXPECT_NE(message_of("dp=0").find("'0'"), std::string::npos);
  EXPECT_NE(message_of("dp=2 dp=4").find("given twice"), std::string::npos);
  EXPECT_NE(message_of("dp=2,,tp=2").find("between two commas"), std::string::npos);
  EXPECT_NE(message_of("dp=2 tp=").find("'tp' has no value"), std::string::npos);
  EXPECT_NE(message_of(""), "");
}

TEST(VerifyLayout, SetsEveryAxisOfTheDeck) {
  std::vector<KeyProblem> problems;
  const Deck own =
      deck({"parallel.tensor=2", "parallel.sequence=true", "parallel.order=dp-tp-cp-pp"});
  const Deck plain = lay_out(own, parse_layouts("dp=2 micro=3")[0], problems);
  EXPECT_TRUE(problems.empty()) << problems.front().text;
  EXPECT_EQ(plain.parallel.tensor, 1);
  EXPECT_FALSE(plain.parallel.sequence);
  EXPECT_EQ(plain.parallel.order, "tp-cp-dp-pp");
  EXPECT_EQ(plain.parallel.data, 2);
  EXPECT_EQ(plain.train.micro_batch_size, 3);
  EXPECT_EQ(plain.train.grad_accum, 4);
  EXPECT_EQ(plain.train.global_batch_size, 24);
}

TEST(VerifyLayout, IsAsLegalAsItsDeck) {
  const auto complaint = [](const char* layout) {
    std::vector<KeyProblem> problems;
    lay_out(deck(), parse_layouts(layout)[0], problems);
    return problems.empty() ? std::string() : problems.front().text;
  };
  EXPECT_EQ(complaint("dp=2 tp=4 sequence=true"), "");
  EXPECT_NE(complaint("tp=3").find("model.n_head = 8 cannot be divided"), std::string::npos);
  EXPECT_NE(complaint("sequence=true").find("parallel.sequence = true"), std::string::npos);
  EXPECT_NE(complaint("dp=5").find("train.global_batch_size = 24 is not a multiple"),
            std::string::npos);
  EXPECT_NE(complaint("order=sideways").find("parallel.order"), std::string::npos);
}

TEST(VerifySpace, HoldsEveryLegalLayoutOnce) {
  const std::vector<VerifyLayout> legal = legal_layouts(deck(), 8);
  std::set<std::string> names;
  for (const VerifyLayout& layout : legal) {
    std::vector<KeyProblem> problems;
    lay_out(deck(), layout, problems);
    EXPECT_TRUE(problems.empty()) << layout.to_string() << ": " << problems.front().text;
    EXPECT_LE(layout.ranks(), 8);
    names.insert(layout.to_string());
  }
  EXPECT_EQ(names.size(), legal.size());
  for (const char* layout :
       {"dp=1 tp=1 pp=1 cp=1", "dp=8 tp=1 pp=1 cp=1 micro=3", "dp=3 tp=2 pp=1 cp=1 sequence=true",
        "dp=2 tp=4 pp=1 cp=1 order=dp-tp-cp-pp", "dp=1 tp=8 pp=1 cp=1 sequence=true micro=4"})
    EXPECT_TRUE(names.contains(layout)) << layout;
  for (const std::string& name : names) {
    EXPECT_EQ(name.find("tp=3"), std::string::npos) << name;
    EXPECT_EQ(name.find("dp=5"), std::string::npos) << name;
    // What has no effect is no layout of its own.
    if (name.find("tp=1 ") != std::string::npos) {
      EXPECT_EQ(name.find("sequence"), std::string::npos) << name;
    }
  }
  EXPECT_EQ(legal_layouts(deck(), 1).size(), 4u * 3 * 2)
      << "one rank: sizes of micro-batches, what is computed again, tiles";
}

TEST(VerifySpace, AllMeetsEveryTwoValuesThatGoTogether) {
  for (const int ranks : {1, 2, 6, 8}) {
    const std::vector<VerifyLayout> legal = legal_layouts(deck(), ranks);
    const Covering covering = covering_order(legal, 0);
    EXPECT_EQ(pairs_of(covering.layouts), pairs_of(legal)) << ranks;
    EXPECT_EQ(covering.pairs_at, covering.layouts.size()) << "it stops as soon as it may";
    auto before = covering.layouts;
    before.pop_back();
    EXPECT_NE(pairs_of(before), pairs_of(legal)) << "and not later";
    // The same every time, and each at most once.
    EXPECT_EQ(covering_order(legal, 0).layouts, covering.layouts);
    std::set<std::string> names;
    for (const VerifyLayout& layout : covering.layouts) names.insert(layout.to_string());
    EXPECT_EQ(names.size(), covering.layouts.size());
  }
}

TEST(VerifySpace, SetsAreAsLargeAsTheySay) {
  const std::vector<VerifyLayout> legal = legal_layouts(deck(), 8);
  const LayoutSelection all = choose_layouts(deck(), 8, "all");
  EXPECT_EQ(all.layouts.size(), std::min<std::size_t>(legal.size(), 150));
  EXPECT_EQ(pairs_of(all.layouts), pairs_of(legal));
  const LayoutSelection quick = choose_layouts(deck(), 8, "quick");
  EXPECT_GE(quick.layouts.size(), 30u);
  EXPECT_LT(quick.layouts.size(), 60u);
  EXPECT_EQ(values_of(quick.layouts), values_of(legal));
  EXPECT_EQ(choose_layouts(deck(), 8, "exhaustive").layouts.size(), legal.size());
  const LayoutSelection listed = choose_layouts(deck(), 8, "tp=2 sequence=true,dp=2");
  ASSERT_EQ(listed.layouts.size(), 2u);
  EXPECT_EQ(listed.layouts[1].to_string(), "dp=2 tp=1 pp=1 cp=1") << "in the order given";
  EXPECT_THROW(choose_layouts(deck(), 8, "dp=5"), DeckError);
  EXPECT_THROW(choose_layouts(deck(), 8, "dp=4 tp=4"), DeckError) << "16 ranks";
  EXPECT_THROW(choose_layouts(deck(), 8, "everything"), DeckError);
}

TEST(VerifyDeck, TrainsTheSameWhateverTheDataSize) {
  std::vector<std::string> notes;
  const Deck changed = verify_deck(parse_deck(R"({"data": {"train": ["no/such/file"]},
                     "optimizer": {"scale_lr": "sqrt"},
                     "train": {"precision": "bf16-mixed", "micro_batch_size": 2, "grad_accum": 3}})",
                                              "deck.json", {}),
                                   "fp64", notes);
  EXPECT_EQ(changed.train.precision, "fp64");
  EXPECT_EQ(changed.device, "cpu");
  EXPECT_EQ(changed.optimizer.scale_lr, "none");
  EXPECT_EQ(changed.train.global_batch_size, 6);
  EXPECT_EQ(changed.model.gpt.vocab_size, 97);
  EXPECT_EQ(notes.size(), 2u) << "and says so";
}

}  // namespace
}  // namespace choir
