#include "src/lab/tune/tune.hpp"

#include <gtest/gtest.h>

#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::memory_of;
using test::plan_case;
using test::variants;

double memory_with(int micro, int ranks) {
  const DeckVariants decks = variants();
  return memory_of(plan_layout(
      plan_case(decks, ranks, ranks, 1e15, {"train.micro_batch_size=" + std::to_string(micro)})));
}

// The global batch of the deck is 192: divisors of 96 on two ranks are 1 2 3 4 6 8 12 ...
TEST(MicroBatchTuner, TheNextDivisorIsAboveTheLimit) {
  const DeckVariants decks = variants();
  const double limit = (memory_with(6, 2) + memory_with(8, 2)) / 2;
  const TunedMicroBatch tuned = tune_micro_batch(plan_case(decks, 2, 2, limit), decks);
  EXPECT_EQ(tuned.was.micro, 2);
  EXPECT_EQ(tuned.batch.micro, 6);
  EXPECT_EQ(tuned.batch.accum, 16);
  EXPECT_EQ(tuned.batch.global, 192);
  EXPECT_EQ(tuned.limited_by, "memory");
  ASSERT_EQ(tuned.rows.size(), 6u);
  EXPECT_EQ(tuned.rows.back().micro, 8);
  EXPECT_FALSE(tuned.rows.back().fits);
  EXPECT_EQ(tuned.rows[4].bytes, memory_with(6, 2));
  EXPECT_EQ(tuned.changes(), std::vector<std::string>{"train.micro_batch_size=6"});
  EXPECT_NE(to_string(tuned).find("8           12"), std::string::npos) << to_string(tuned);
}

TEST(MicroBatchTuner, WithPlentyTheGlobalBatchIsTheBound) {
  const DeckVariants decks = variants({"train.grad_accum=48"});
  const TunedMicroBatch tuned = tune_micro_batch(plan_case(decks, 2, 2, 1e15), decks);
  EXPECT_EQ(tuned.batch.micro, 96);
  EXPECT_EQ(tuned.limited_by, "train.global_batch_size");
  // The accumulation of the deck follows the micro-batch.
  const Deck deck = decks.with(tuned.changes());
  EXPECT_EQ(deck.train.grad_accum, 1);
  EXPECT_EQ(deck.train.micro_batch_size, 96);
}

TEST(MicroBatchTuner, APipelineKeepsItsMicroBatches) {
  const DeckVariants decks = variants({"parallel.pipeline=3"});
  const TunedMicroBatch tuned = tune_micro_batch(plan_case(decks, 3, 3, 1e15), decks);
  EXPECT_EQ(tuned.batch.accum, 12);  // 4 per stage
  EXPECT_NE(tuned.limited_by.find("parallel.pipeline: 3 stages"), std::string::npos);
}

std::string complaint(const DeckVariants& decks, double memory) {
  try {
    tune_micro_batch(plan_case(decks, 1, 1, memory), decks);
  } catch (const DeckError& error) {
    return error.what();
  }
  return {};
}

TEST(MicroBatchTuner, SaysWhyItCannot) {
  const std::string little = complaint(variants(), 1000);
  EXPECT_NE(little.find("the parameters alone are "), std::string::npos) << little;
  EXPECT_NE(little.find("above the limit of 1000"), std::string::npos) << little;
  const DeckVariants same = variants({"train.reproducible=true", "train.global_batch_size=128"});
  EXPECT_NE(complaint(same, 1e15).find("train.reproducible = true"), std::string::npos);
}

}  // namespace
}  // namespace choir
