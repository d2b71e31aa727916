// Tests of layouts that a deck requests and cannot have: the message, and the possible layouts that
// it lists.
#include <gtest/gtest.h>

#include <sstream>

#include "choir/deck/deck.hpp"
#include "test/support/families.hpp"
#include "test/support/has.hpp"

namespace choir {
namespace {

// 12 layers, 12 heads; eight sequences per step in micro-batches of one.
Deck deck_with(const std::vector<std::string>& overrides) {
  return parse_deck(test::families(), R"({"data": {"train": "a.txt"},
 "train": {"micro_batch_size": 1, "global_batch_size": 8}})",
                    "decks/small.json", overrides);
}

std::string complaint_of_layout(const std::vector<std::string>& overrides) {
  try {
    deck_with(overrides);
  } catch (const DeckError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return {};
}

std::string refusal(int ranks, const std::vector<std::string>& overrides) {
  try {
    layout_of(deck_with(overrides), ranks);
  } catch (const DeckError& error) {
    return std::string(error.what()) + "\n" + error.hint();
  }
  return {};
}

TEST(DeckLayout, StagesAndLayers) {
  EXPECT_EQ(complaint_of_layout({"parallel.pipeline=13"}),
            "command line: parallel.pipeline = 13 is more than model.n_layer = 12: a stage needs a "
            "layer; nearest legal: pipeline = 12");
  EXPECT_EQ(complaint_of_layout({"parallel.pipeline=4", "parallel.schedule=interleaved",
                                 "parallel.virtual_stages=4"}),
            "command line: parallel.pipeline = 4 x parallel.virtual_stages = 4 cut the model into "
            "16 pieces, but model.n_layer = 12; nearest legal: virtual_stages = 3, or n_layer = "
            "16");
  EXPECT_EQ(complaint_of_layout({"parallel.pipeline=2", "parallel.virtual_stages=2"}),
            "command line: parallel.virtual_stages = 2 is for parallel.schedule = "
            "\"interleaved\", \"1f1b\" has one piece a stage; nearest legal: virtual_stages = 1");
  EXPECT_EQ(complaint_of_layout({"parallel.schedule=interleaved", "parallel.virtual_stages=2"}),
            "command line: parallel.virtual_stages = 2 shares layers among stages of a pipeline, "
            "but parallel.pipeline = 1; nearest legal: virtual_stages = 1, or pipeline = 2");
  EXPECT_EQ(complaint_of_layout({"parallel.pipeline=12"}), "");
  EXPECT_EQ(complaint_of_layout({"parallel.pipeline=4", "parallel.schedule=interleaved",
                                 "parallel.virtual_stages=3"}),
            "");
}

TEST(DeckLayout, ContextAndHeads) {
  const char* const ulysses = "parallel.context_mode=ulysses";
  EXPECT_EQ(
      complaint_of_layout({"parallel.context=5", ulysses}),
      "command line: parallel.context = 5 does not divide the 12 heads that each of "
      "parallel.tensor = 1 ranks has of model.n_head = 12, as parallel.context_mode = "
      "\"ulysses\" requires; legal: context = 1, 2, 3, 4, 6 or 12, or context_mode = \"gather\"");
  EXPECT_EQ(complaint_of_layout({"parallel.context=4", "parallel.tensor=2", ulysses}),
            "command line: parallel.context = 4 does not divide the 6 heads that each of "
            "parallel.tensor = 2 ranks has of model.n_head = 12, as parallel.context_mode = "
            "\"ulysses\" requires; legal: context = 1, 2, 3 or 6, or context_mode = \"gather\"");
  for (const char* const mode : {"auto", "gather"})
    EXPECT_EQ(
        complaint_of_layout({"parallel.context=5", std::string("parallel.context_mode=") + mode}),
        "");
  EXPECT_EQ(complaint_of_layout({"parallel.context=2", "train.reproducible=true"}),
            "command line: train.reproducible = true sums gradients over whole micro-batches, "
            "which parallel.context = 2 divides; nearest legal: context = 1");
  EXPECT_EQ(complaint_of_layout({"parallel.context=2", "parallel.zero=1", "parallel.zero_group=2"}),
            "");
  EXPECT_EQ(complaint_of_layout({"parallel.context=6", "parallel.tensor=2"}), "");
}

// The nearest layouts change the fewest keys, and those by the smallest factors.
TEST(DeckLayout, RanksThatDoNotComeOut) {
  EXPECT_EQ(refusal(6, {"parallel.tensor=4"}),
            "6 ranks cannot be divided by parallel.tensor 4 x parallel.context 1 x "
            "parallel.pipeline 1 = 4; parallel.tensor = 4 is not legal here; legal: 3, 6\n"
            "start a multiple of 4 ranks; legal on 6 ranks (the nearest of 12):\n"
            "  parallel.tensor=3 parallel.context=1 parallel.pipeline=1 (parallel.data 2)\n"
            "  parallel.tensor=6 parallel.context=1 parallel.pipeline=1 (parallel.data 1)\n"
            "  parallel.tensor=3 parallel.context=1 parallel.pipeline=2 (parallel.data 1)\n"
            "  parallel.tensor=3 parallel.context=2 parallel.pipeline=1 (parallel.data 1)\n"
            "  parallel.tensor=2 parallel.context=1 parallel.pipeline=3 (parallel.data 1)\n"
            "  parallel.tensor=2 parallel.context=3 parallel.pipeline=1 (parallel.data 1)");
  // Sequence parallelism without tensor ranks is no layout, nor is one that the batch rules out.
  EXPECT_EQ(refusal(3, {"parallel.tensor=2", "parallel.sequence=true"}),
            "3 ranks cannot be divided by parallel.tensor 2 x parallel.context 1 x "
            "parallel.pipeline 1 = 2; parallel.tensor = 2 is not legal here; legal: 3\n"
            "start a multiple of 2 ranks; legal on 3 ranks:\n"
            "  parallel.tensor=3 parallel.context=1 parallel.pipeline=1 (parallel.data 1)");
  // No axis can divide the model among seven ranks, and seven ranks cannot share the batch.
  EXPECT_EQ(refusal(7, {"parallel.pipeline=2", "model.n_layer=2", "parallel.context_mode=ulysses"}),
            "7 ranks cannot be divided by parallel.tensor 1 x parallel.context 1 x "
            "parallel.pipeline 2 = 2\n"
            "start a multiple of 2 ranks");
  // An axis is named with the others that limit it, and never if its own size is legal.
  EXPECT_TRUE(
      test::has(refusal(8, {"parallel.tensor=4", "parallel.pipeline=4"}),
                "; with parallel.pipeline = 4, parallel.tensor can be 1, 2; with parallel.tensor "
                "= 4, parallel.pipeline can be 1, 2\n"));
  EXPECT_FALSE(
      test::has(refusal(2, {"parallel.tensor=2", "parallel.data=2"}), "parallel.tensor = 2 "));
  EXPECT_EQ(refusal(4, {"parallel.data=3", "parallel.pipeline=2"}).substr(0, 40),
            "parallel.data is 3, but 4 ranks leave 2 ");
}

// Every layout that the message lists is legal.
TEST(DeckLayout, TheTableIsLegal) {
  for (const int ranks : {2, 3, 5, 6, 8, 12, 24}) {
    const std::string text = refusal(ranks, {"parallel.tensor=4", "parallel.pipeline=12"});
    std::size_t lines = 0, at = text.find("\n  parallel.");
    for (; at != std::string::npos; at = text.find("\n  parallel.", at + 1), ++lines) {
      std::istringstream words(text.substr(at));
      std::vector<std::string> keys(3);
      words >> keys[0] >> keys[1] >> keys[2];
      EXPECT_EQ(complaint_of_layout(keys), "");
      EXPECT_EQ(refusal(ranks, keys), "");
    }
    EXPECT_GT(lines, ranks == 5 ? 0u : 1u) << ranks;
    EXPECT_LE(lines, 6u) << ranks;
  }
}

}  // namespace
}  // namespace choir
