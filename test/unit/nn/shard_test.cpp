// Tests of the elements of a tensor that a rank holds: worked out by hand for small shapes; over
// all ranks every element is owned once.
#include "choir/nn/parameter.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace choir {
namespace {

Parameter parameter(const Shape& shape, const ShardSpec& spec, int rank, int ranks) {
  Parameter p;
  p.name = "p";
  p.shape = shape;
  p.shard = spec;
  p.split = {.rank = rank, .ranks = ranks};
  p.local = local_shape(shape, spec, p.split);
  return p;
}

void expect_run(const ShardRun& run, std::int64_t logical, std::int64_t local, std::int64_t count,
                bool owned) {
  EXPECT_EQ(run.logical, logical);
  EXPECT_EQ(run.local, local);
  EXPECT_EQ(run.count, count);
  EXPECT_EQ(run.owned, owned);
}

TEST(Shard, SectionsAreCutSeparately) {
  // Rows q0 q1 q2 q3 | k0 k1 | v0 v1 of 3 columns, rank 1 of 2: q2 q3 k1 v1.
  const Parameter p =
      parameter({8, 3}, {.split_dim = 0, .sections = {{4, 4}, {2, 2}, {2, 2}}}, 1, 2);
  EXPECT_EQ(p.local, (Shape{4, 3}));
  const auto runs = shard_runs(p);
  ASSERT_EQ(runs.size(), 3u);
  expect_run(runs[0], 6, 0, 6, true);
  expect_run(runs[1], 15, 6, 3, true);
  expect_run(runs[2], 21, 9, 3, true);
  EXPECT_TRUE(partial_runs(p).empty());
  ASSERT_EQ(owned_ranges(p, 1).size(), 1u) << "neighbours in memory are one range";
}

TEST(Shard, FewerPartsThanRanksAreHeldBySeveral) {
  // Two heads of keys for four ranks: ranks 2 and 3 hold the second, rank 2 owns it.
  const ShardSpec spec{.split_dim = 0, .sections = {{8, 4}, {4, 2}}};
  const Parameter second = parameter({12}, spec, 2, 4), third = parameter({12}, spec, 3, 4);
  EXPECT_EQ(second.local, (Shape{4}));
  expect_run(shard_runs(second)[1], 10, 2, 2, true);
  expect_run(shard_runs(third)[1], 10, 2, 2, false);
  const auto partial = partial_runs(third);
  ASSERT_EQ(partial.size(), 1u);
  EXPECT_EQ(partial[0].local, 2);
  EXPECT_EQ(partial[0].count, 2);
  EXPECT_EQ(partial[0].place, 2);
  EXPECT_EQ(partial[0].size, 4);
}

TEST(Shard, ColumnsAreRunsOfEveryRow) {
  const Parameter p = parameter({3, 4}, {.split_dim = 1}, 1, 2);
  EXPECT_EQ(p.local, (Shape{3, 2}));
  const auto runs = shard_runs(p);
  ASSERT_EQ(runs.size(), 3u);
  expect_run(runs[2], 10, 4, 2, true);
  ASSERT_EQ(owned_ranges(p, 0).size(), 1u);
  EXPECT_EQ(owned_ranges(p, 0)[0].count, 6);
}

TEST(Shard, PaddingIsInNoRun) {
  // 19 rows for 4 ranks in groups of eight: 8, 8, 3, 0.
  const ShardSpec spec{.split_dim = 0, .alignment = 8};
  EXPECT_EQ(parameter({19, 2}, spec, 3, 4).local, (Shape{8, 2}));
  EXPECT_TRUE(shard_runs(parameter({19, 2}, spec, 3, 4)).empty());
  EXPECT_EQ(shard_runs(parameter({19, 2}, spec, 2, 4))[0].count, 6);
}

// 50257 symbols on one rank: rows of logits begin at multiples of 16 bytes, and the checkpoint has
// no padding.
TEST(Shard, OneRankPadsToo) {
  const ShardSpec spec{.split_dim = 0, .alignment = kVocabularyAlignment};
  const Parameter head = parameter({50257, 2}, spec, 0, 1);
  EXPECT_EQ(head.local, (Shape{50304, 2}));
  ASSERT_EQ(shard_runs(head).size(), 1u);
  expect_run(shard_runs(head)[0], 0, 0, 50257 * 2, true);
  ASSERT_EQ(owned_ranges(head, 0).size(), 1u);
  EXPECT_EQ(owned_ranges(head, 0)[0].count, 50257 * 2);
}

// The head of a recogniser is whole on every rank.
TEST(Shard, PaddingWithoutACut) {
  const ShardSpec spec{.alignment = kVocabularyAlignment};
  for (const int rank : {0, 1}) {
    const Parameter head = parameter({1025, 2}, spec, rank, 2);
    EXPECT_EQ(head.local, (Shape{1088, 2}));
    ASSERT_EQ(shard_runs(head).size(), 1u);
    expect_run(shard_runs(head)[0], 0, 0, 1025 * 2, rank == 0);
    EXPECT_TRUE(partial_runs(head).empty());
  }
}

TEST(Shard, PaddingAddsAtMostASixteenthWhereEightsCan) {
  const auto rows = [](std::int64_t extent, int ranks) {
    const ShardSpec spec{.split_dim = 0, .alignment = kVocabularyAlignment};
    return parameter({extent, 1}, spec, 0, ranks).local[0];
  };
  EXPECT_EQ(rows(65, 1), 72) << "characters: 128 would double the head";
  EXPECT_EQ(rows(1023, 1), 1024);
  EXPECT_EQ(rows(500, 1), 512);
  EXPECT_EQ(rows(1025, 8), 136) << "129 a rank";
  EXPECT_EQ(rows(11, 1), 16);
}

// Sections gate and up of 8 rows each: rank 1 of 2 has rows 4 to 7 of both, its tile 1 of 2 the
// second half of either.
TEST(Shard, ATileIsAPartOfEverySectionOfARank) {
  ShardSpec spec{.split_dim = 0, .sections = {{8}, {8}}, .tile = 1, .tiles = 2};
  const Parameter p = parameter({16, 3}, spec, 1, 2);
  EXPECT_EQ(p.local, (Shape{4, 3}));
  const auto runs = shard_runs(p);
  ASSERT_EQ(runs.size(), 2u);
  expect_run(runs[0], 6 * 3, 0, 6, true);
  expect_run(runs[1], 14 * 3, 6, 6, true);
  EXPECT_TRUE(partial_runs(p).empty());
  spec = {.split_dim = 1, .tile = 2, .tiles = 3};  // columns 4 and 5 of rows of 6
  const auto columns = shard_runs(parameter({2, 6}, spec, 0, 1));
  ASSERT_EQ(columns.size(), 2u);
  expect_run(columns[1], 6 + 4, 2, 2, true);
}

TEST(Shard, TilesOwnEveryElementOnce) {
  const std::vector<std::pair<Shape, ShardSpec>> cases{
      {{24, 5}, {.split_dim = 0}},
      {{5, 24}, {.split_dim = 1}},
      {{48, 2}, {.split_dim = 0, .sections = {{24}, {24}}}},
      {{48}, {.split_dim = 0, .sections = {{24}, {24}}}}};
  for (const auto& [shape, plain] : cases)
    for (const int ranks : {1, 2, 3, 4})
      for (const int tiles : {2, 3, 6}) {
        if (24 / ranks % tiles != 0) continue;
        std::vector<int> owners(static_cast<std::size_t>(shape.count()), 0);
        std::int64_t counted = 0;
        for (int rank = 0; rank < ranks; ++rank)
          for (int tile = 0; tile < tiles; ++tile) {
            ShardSpec spec = plain;
            spec.tile = tile, spec.tiles = tiles;
            const Parameter p = parameter(shape, spec, rank, ranks);
            EXPECT_EQ(p.local_count(), shape.count() / ranks / tiles);
            for (const ShardRun& run : shard_runs(p))
              for (std::int64_t i = 0; run.owned && i < run.count; ++i)
                ++owners[static_cast<std::size_t>(run.logical + i)];
            for (const LocalRange& range : owned_ranges(p, rank)) counted += range.count;
          }
        EXPECT_EQ(counted, shape.count()) << to_string(shape) << " on " << ranks;
        EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }))
            << to_string(shape) << " on " << ranks << " in " << tiles;
      }
}

TEST(Shard, EveryElementIsOwnedOnce) {
  const std::vector<std::pair<Shape, ShardSpec>> cases{
      {{24, 5}, {}},
      {{24, 5}, {.split_dim = 0}},
      {{5, 24}, {.split_dim = 1}},
      {{19, 3}, {.split_dim = 0, .alignment = 8}},
      {{40, 3}, {.split_dim = 0, .sections = {{24, 12}, {8, 1}, {8, 1}}}},
      {{48}, {.split_dim = 0, .sections = {{24}, {24}}}},
      {{24}, {.partial = {Axis::tensor}}}};
  for (const auto& [shape, spec] : cases)
    for (int ranks = 1; ranks <= 8; ++ranks) {
      if (24 % ranks != 0) continue;
      if (spec.sections.size() == 3 && 12 % ranks != 0) continue;  // heads that do not divide
      std::vector<int> owners(static_cast<std::size_t>(shape.count()), 0);
      std::int64_t counted = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Parameter p = parameter(shape, spec, rank, ranks);
        for (const ShardRun& run : shard_runs(p))
          for (std::int64_t i = 0; run.owned && i < run.count; ++i)
            ++owners[static_cast<std::size_t>(run.logical + i)];
        for (const LocalRange& range : owned_ranges(p, rank)) counted += range.count;
      }
      EXPECT_EQ(counted, shape.count()) << to_string(shape) << " on " << ranks;
      EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }))
          << to_string(shape) << " on " << ranks;
    }
}

TEST(Shard, WhatCannotBeCutIsRefused) {
  EXPECT_THROW(parameter({7}, {.split_dim = 0}, 0, 2), Error);
  EXPECT_THROW(parameter({6}, {.split_dim = 0, .sections = {{6, 2}}}, 0, 3), Error);
  EXPECT_THROW(parameter({6}, {.split_dim = 0, .sections = {{4}}}, 0, 2), Error);
  EXPECT_THROW(parameter({12}, {.split_dim = 0, .tiles = 4}, 0, 2), Error) << "6 of a rank";
  EXPECT_THROW(parameter({12}, {.tiles = 4}, 0, 1), Error) << "along no dim";
}

}  // namespace
}  // namespace choir
