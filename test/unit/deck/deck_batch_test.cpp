#include <gtest/gtest.h>

#include "choir/deck/deck.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

std::string complaint_of_batch(std::int64_t micro, std::int64_t accum, std::int64_t global,
                               int ranks) {
  try {
    resolve_batch_sizes(micro, accum, global, ranks);
  } catch (const DeckError& error) {
    return std::string(error.what()) + " -> " + error.hint();
  }
  return {};
}

TEST(DeckBatch, AnyTwoGiveTheThird) {
  for (std::int64_t micro = 1; micro <= 5; ++micro)
    for (std::int64_t accum = 1; accum <= 5; ++accum)
      for (int ranks = 1; ranks <= 5; ++ranks) {
        const std::int64_t global = micro * accum * ranks;
        EXPECT_EQ(resolve_batch_sizes(micro, accum, 0, ranks).global, global);
        EXPECT_EQ(resolve_batch_sizes(micro, 0, global, ranks).accum, accum);
        EXPECT_EQ(resolve_batch_sizes(0, accum, global, ranks).micro, micro);
        const BatchSizes all = resolve_batch_sizes(micro, accum, global, ranks);
        EXPECT_EQ(all.micro_batches(), accum * ranks);
        EXPECT_NE(complaint_of_batch(micro, accum, global + 1, ranks), "");
      }
}

TEST(DeckBatch, WhoSaysLessThanTwoHasOnePassAStep) {
  const auto expect = [](const BatchSizes& batch, std::int64_t micro, std::int64_t accum,
                         std::int64_t global) {
    EXPECT_EQ(batch.micro, micro);
    EXPECT_EQ(batch.accum, accum);
    EXPECT_EQ(batch.global, global);
  };
  expect(resolve_batch_sizes(0, 0, 0, 2), 8, 1, 16);
  expect(resolve_batch_sizes(4, 0, 0, 3), 4, 1, 12);
  expect(resolve_batch_sizes(0, 0, 48, 4), 12, 1, 48);
  expect(resolve_batch_sizes(0, 5, 0, 2), 8, 5, 80);
  EXPECT_NE(complaint_of_batch(0, 0, 5, 2).find("data-parallel ranks that divide 5: 1, 5"),
            std::string::npos);
}

TEST(DeckBatch, ContradictionsNameTheNearestLegalValues) {
  EXPECT_EQ(complaint_of_batch(12, 0, 12, 2),
            "train.global_batch_size = 12 is not a multiple of train.micro_batch_size = 12 x 2 "
            "data-parallel ranks = 24 -> nearest legal: train.global_batch_size = 24; or "
            "train.micro_batch_size = 1, 2, 3, 6");
  EXPECT_EQ(
      complaint_of_batch(4, 0, 30, 4),
      "train.global_batch_size = 30 is not a multiple of train.micro_batch_size = 4 x 4 "
      "data-parallel "
      "ranks = 16 -> nearest legal: train.global_batch_size = 16 or 32; or data-parallel ranks "
      "that divide 30: 2, 3, 5, 6, with train.micro_batch_size = 1");
  // Every number of ranks that is named leaves whole micro-batches.
  EXPECT_NE(complaint_of_batch(2, 0, 24, 64).find("ranks that divide 12: 3, 4, 6, 12"),
            std::string::npos);
  EXPECT_EQ(
      complaint_of_batch(0, 3, 8, 1),
      "train.global_batch_size = 8 is not a multiple of train.grad_accum = 3 -> nearest legal: "
      "train.global_batch_size = 6 or 9; or train.grad_accum = 1, 2, 4, 8");
  EXPECT_EQ(
      complaint_of_batch(4, 3, 32, 2),
      "train.global_batch_size = 32 is not train.micro_batch_size = 4 x train.grad_accum = 3 x 2 "
      "data-parallel ranks = 24 -> nearest legal: train.global_batch_size = 24; or "
      "train.grad_accum "
      "= 4; or leave one of the three out");
}

Deck deck_of(const std::vector<std::string>& overrides) {
  return parse_deck(test::families(), "{\"data\": {\"train\": \"a\"}}", "d.json", overrides);
}

TEST(DeckBatch, ResolvesADeckAndMarksWhatFollowed) {
  Deck deck = deck_of({"train.micro_batch_size=2", "train.global_batch_size=12"});
  resolve_batch(deck, 3);
  EXPECT_EQ(deck.train.grad_accum, 2);
  EXPECT_EQ(deck.origins.at("train.grad_accum").source, KeySource::derived);
  EXPECT_EQ(deck.origins.at("train.micro_batch_size").source, KeySource::command);
  resolve_batch(deck, 1);  // a derived value does not constrain
  EXPECT_EQ(deck.train.grad_accum, 6);
}

TEST(DeckBatch, DataParallelSizeMustBeTheOneOfTheJob) {
  Deck deck =
      deck_of({"train.micro_batch_size=2", "train.global_batch_size=12", "parallel.data=3"});
  EXPECT_NO_THROW(resolve_batch(deck, 3));
  try {
    resolve_batch(deck, 2);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(), "parallel.data = 3 but this job has 2 ranks for it");
    EXPECT_EQ(error.hint(), "legal: \"auto\" or 2; or start it on 3 ranks");
  }
}

TEST(DeckBatch, WhatNoRanksCouldMendIsRefusedAtOnce) {
  EXPECT_THROW(deck_of({"train.micro_batch_size=3", "train.global_batch_size=8"}), DeckError);
  EXPECT_THROW(deck_of({"train.grad_accum=3", "train.global_batch_size=8"}), DeckError);
}

TEST(DeckBatch, ReproducibleWantsPowersOfTwo) {
  for (const int ranks : {1, 2, 4, 8})
    for (const std::int64_t accum : {1, 2, 16})
      EXPECT_NO_THROW(require_reproducible({3, accum, 3 * accum * ranks, ranks}));
  try {
    require_reproducible({1, 6, 18, 3});
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(),
                 "train.reproducible = true needs powers of two, but the data-parallel size is "
                 "3 and train.grad_accum is 6");
    EXPECT_NE(error.hint().find("2 or 4 ranks, train.grad_accum = 4 or 8"), std::string::npos);
  }
  Deck deck =
      deck_of({"train.micro_batch_size=1", "train.global_batch_size=6", "train.reproducible=true"});
  EXPECT_THROW(resolve_batch(deck, 2), DeckError);
}

TEST(DeckBatch, ProfileRange) {
  EXPECT_EQ(profile_range("3:7").first, 3);
  EXPECT_EQ(profile_range("3:7").last, 7);
  EXPECT_EQ(profile_range("").last, 0);
  for (const char* bad : {"3", "0:2", "4:3", "a:b", "1:2:3", ":", "1:", "-1:2"})
    EXPECT_THROW(profile_range(bad), DeckError) << bad;
}

}  // namespace
}  // namespace choir
