#include "src/lab/plan/layout_search.hpp"
#include "src/models/gpt/family.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "test/support/families.hpp"
#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::kPlenty;
using test::memory_of;
using test::plan_case;
using test::variants;

std::string text_of(const LayoutChoice& choice) {
  std::string text = choice.plan.layout.to_string();
  for (const std::string& change : choice.changes) text += " " + change;
  return text;
}

TEST(DeckVariants, ChangesReplaceWhatWasGiven) {
  const DeckVariants decks = variants({"parallel.tensor=2", "model.n_head=4"});
  EXPECT_EQ(decks.with({}).parallel.tensor, 2);
  EXPECT_EQ(decks.with({"parallel.tensor=4"}).parallel.tensor, 4);
  EXPECT_EQ(gpt_of(decks.with({"parallel.tensor=4"})).n_head, 4);
  EXPECT_FALSE(decks.legal_with({"parallel.tensor=3"}).has_value());
  EXPECT_THROW(decks.with({"parallel.tenser=2"}), DeckError);
  const DeckVariants unknown(
      test::families(),
      R"({"model": {"n_layer": 1, "n_head": 2, "n_embd": 8}, "data": {"train": ["x.txt"]},
          "train": {"micro_batch_size": 1, "grad_accum": 1}})",
      "a.json", {}, 65);
  EXPECT_EQ(gpt_of(unknown.with({})).vocab_size, 65);
  EXPECT_EQ(gpt_of(unknown.with({"model.vocab_size=70"})).vocab_size, 70);
}

// The batch of a rank becomes smaller with the ranks: a micro-batch which was chosen for fewer of
// them does not exclude plain data parallelism.
TEST(LayoutSearch, AMicroBatchThatDoesNotDivideIsReplaced) {
  const DeckVariants decks = variants({"train.micro_batch_size=96"});
  const LayoutSearch search = search_layouts(plan_case(decks, 4, 4, kPlenty), decks);
  ASSERT_FALSE(search.fitting.empty());
  const LayoutPlan& first = search.fitting.front().plan;
  EXPECT_EQ(first.layout.size(Axis::data), 4);
  EXPECT_EQ(first.batch.micro, 48);
  EXPECT_EQ(first.batch.global, 192);
}

/// The steps of the ladder in the words that users read.
int rung(const LayoutChoice& choice, int ranks_per_node) {
  const Layout& layout = choice.plan.layout;
  if (layout.size(Axis::tensor) > ranks_per_node) return 5;
  if (layout.size(Axis::pipeline) > 1) return 4;
  if (layout.size(Axis::context) > 1) return 3;
  if (layout.size(Axis::tensor) > 1) return 2;
  return choice.plan.deck.parallel.zero > 0 ? 1 : 0;
}

// For any axes that the deck allows, each choice is legal, is described correctly, fits, differs
// from the others, keeps the global batch, and is on no lower step than the one before.
TEST(LayoutSearch, ListsLegalLayoutsUpTheLadder) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 16, 4, kPlenty);
  const LayoutSearch search = search_layouts(request, decks);
  ASSERT_GE(search.fitting.size(), 4u);  // tensor = 1, 2, 4, 8
  EXPECT_EQ(search.too_large, 0);
  EXPECT_FALSE(search.closest.has_value());
  std::set<std::string> texts;
  int before = 0;
  for (const LayoutChoice& choice : search.fitting) {
    PlanCase same = request;
    same.deck = decks.with(choice.changes);
    const LayoutPlan exact = plan_layout(same);
    EXPECT_EQ(exact.layout.to_string(), choice.plan.layout.to_string());
    EXPECT_EQ(exact.layout.ranks(), 16);
    EXPECT_EQ(exact.batch.global, 192);
    EXPECT_EQ(exact.batch.micro, choice.plan.batch.micro);
    EXPECT_TRUE(exact.fits());
    EXPECT_TRUE(texts.insert(text_of(choice)).second) << text_of(choice);
    EXPECT_GE(rung(choice, 4), before) << text_of(choice);
    EXPECT_FALSE(choice.reason.empty());
    before = rung(choice, 4);
  }
  const LayoutChoice& first = search.fitting.front();
  EXPECT_EQ(first.plan.layout.size(Axis::data), 16);
  EXPECT_EQ(first.plan.batch.micro, 12);
  EXPECT_EQ(first.changes, std::vector<std::string>{"train.micro_batch_size=12"});
  EXPECT_EQ(first.reason, "every rank holds everything, only gradients are sent");
}

TEST(LayoutSearch, TensorRanksOfSeveralNodesComeLast) {
  const DeckVariants decks = variants();
  const LayoutSearch search = search_layouts(plan_case(decks, 8, 2, kPlenty), decks, 1000);
  const auto far = std::find_if(search.fitting.begin(), search.fitting.end(),
                                [](const auto& c) { return c.plan.layout.size(Axis::tensor) > 2; });
  ASSERT_NE(far, search.fitting.end());
  EXPECT_TRUE(std::all_of(far, search.fitting.end(), [](const auto& choice) {
    return choice.plan.layout.size(Axis::tensor) > 2;
  }));
  EXPECT_NE(far->reason.find("several nodes"), std::string::npos) << far->reason;
}

// The memory lies between the needs of two micro-batches that divide the share of a rank; the
// larger one takes more than 90 %.
TEST(LayoutSearch, FillsTheMemoryToNineTenths) {
  const DeckVariants decks = variants();
  const auto memory = [&](int micro) {
    return memory_of(plan_layout(
        plan_case(decks, 4, 4, kPlenty, {"train.micro_batch_size=" + std::to_string(micro)})));
  };
  for (const auto& [fits, too_large] :
       {std::pair{1, 2}, std::pair{3, 4}, std::pair{6, 8}, std::pair{24, 48}}) {
    ASSERT_GT(memory(too_large), 1.001 * memory(fits));
    const double limit = 0.5 * (memory(fits) + memory(too_large)) / 0.9;
    const LayoutSearch search = search_layouts(plan_case(decks, 4, 4, limit), decks, 1);
    ASSERT_EQ(search.fitting.size(), 1u);
    EXPECT_EQ(search.fitting[0].plan.batch.micro, fits);
    EXPECT_EQ(search.fitting[0].plan.layout.size(Axis::data), 4);
  }
  const LayoutSearch plenty = search_layouts(plan_case(decks, 4, 4, kPlenty), decks, 1);
  EXPECT_EQ(plenty.fitting.at(0).plan.batch.micro, 48);
}

TEST(LayoutSearch, KeepsTheMicroBatchWhereItDecidesTheBits) {
  const DeckVariants decks = variants({"train.reproducible=true", "train.global_batch_size=128"});
  const LayoutSearch search = search_layouts(plan_case(decks, 4, 4, kPlenty), decks);
  ASSERT_FALSE(search.fitting.empty());
  for (const LayoutChoice& choice : search.fitting) EXPECT_EQ(choice.plan.batch.micro, 2);
}

TEST(LayoutSearch, KeepsTheMicroBatchWithoutAGlobalBatch) {
  const DeckVariants decks = variants({"train.global_batch_size=0", "train.grad_accum=3"});
  const LayoutSearch search = search_layouts(plan_case(decks, 4, 4, kPlenty), decks);
  ASSERT_FALSE(search.fitting.empty());
  for (const LayoutChoice& choice : search.fitting) {
    EXPECT_EQ(choice.plan.batch.micro, 2);
    EXPECT_EQ(choice.plan.batch.accum, 3);
  }
}

// There is memory for one micro-batch of four tensor ranks and no more: the simpler layouts are too
// large, as single plans confirm.
TEST(LayoutSearch, LeavesOutWhatIsTooLarge) {
  const DeckVariants decks = variants({"train.recompute=none"});
  const std::vector<std::string> least{"parallel.tensor=4", "parallel.sequence=true",
                                       "train.micro_batch_size=1"};
  const double limit = 1.0001 * memory_of(plan_layout(plan_case(decks, 4, 4, kPlenty, least)));
  const LayoutSearch search = search_layouts(plan_case(decks, 4, 4, limit), decks, 1000);
  ASSERT_FALSE(search.fitting.empty());
  bool found = false;
  for (const LayoutChoice& choice : search.fitting) {
    EXPECT_LE(memory_of(choice.plan), limit);
    found |= choice.plan.layout.size(Axis::tensor) == 4;
  }
  EXPECT_TRUE(found);
  EXPECT_GT(search.fitting[0].changes.size(), 1u);  // not plain data parallelism
}

TEST(LayoutSearch, SaysWhatComesClosest) {
  const DeckVariants decks = variants();
  const LayoutSearch search = search_layouts(plan_case(decks, 8, 8, 1000), decks);
  EXPECT_TRUE(search.fitting.empty());
  EXPECT_GE(search.too_large, 4);
  ASSERT_TRUE(search.closest.has_value());
  for (const char* tensor : {"parallel.tensor=1", "parallel.tensor=2", "parallel.tensor=8"})
    EXPECT_LE(
        memory_of(search.closest->plan),
        memory_of(plan_layout(plan_case(decks, 8, 8, 1000, {tensor, "train.micro_batch_size=1"}))));
}

TEST(LayoutSearch, CountsWhatTheTableHasNoRoomFor) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 16, 4, kPlenty);
  const LayoutSearch all = search_layouts(request, decks, 1000);
  EXPECT_EQ(all.further, 0);
  std::set<std::string> layouts;
  for (const LayoutChoice& choice : all.fitting) layouts.insert(choice.plan.layout.to_string());
  const LayoutSearch few = search_layouts(request, decks, 1);
  EXPECT_EQ(few.fitting.size(), 1u);
  EXPECT_EQ(few.further, static_cast<int>(layouts.size()) - 1);
}

TEST(LayoutSearch, NothingIsLegal) {
  const DeckVariants decks = variants({"parallel.context_mode=ulysses"});  // 192 sequences
  const LayoutSearch search = search_layouts(plan_case(decks, 5, 5, kPlenty), decks);
  EXPECT_TRUE(search.fitting.empty());
  EXPECT_EQ(search.too_large, 0);
  EXPECT_FALSE(search.closest.has_value());
}

}  // namespace
}  // namespace choir
