// Tests of layers over pipeline stages, against every possible cut and by hand.
#include "src/parallel/pipeline/layer_partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "choir/core/philox.hpp"
#include "test/unit/parallel/schedule_case.hpp"

namespace choir {
namespace {

using Counts = std::vector<int>;

Counts counts_of(const std::vector<UnitRange>& ranges) {
  Counts counts;
  int next = 0;
  for (const UnitRange& range : ranges) {
    EXPECT_EQ(range.first, next);  // consecutive
    EXPECT_GE(range.count, 1);
    next += range.count;
    counts.push_back(range.count);
  }
  return counts;
}

/// All partitions of `units` units into `parts` ranges, those with the longest first range first.
void each_cut(int units, int parts, Counts& cut, const auto& body) {
  if (parts == 1) {
    cut.push_back(units);
    body(cut);
    cut.pop_back();
    return;
  }
  for (int first = units - parts + 1; first >= 1; --first) {
    cut.push_back(first);
    each_cut(units - first, parts - 1, cut, body);
    cut.pop_back();
  }
}

Counts best_by_trying(const std::vector<double>& costs, int parts) {
  Counts best, cut;
  double best_largest = INFINITY, best_squares = INFINITY;
  each_cut(static_cast<int>(costs.size()), parts, cut, [&](const Counts& candidate) {
    double largest = 0, squares = 0;
    auto at = costs.begin();
    for (const int count : candidate) {
      const double sum = std::accumulate(at, at + count, 0.0);
      at += count;
      largest = std::max(largest, sum);
      squares += sum * sum;
    }
    if (std::pair(largest, squares) < std::pair(best_largest, best_squares)) {
      best = candidate;
      best_largest = largest;
      best_squares = squares;
    }
  });
  return best;
}

// Costs are small integers, so that sums are exact and ties are real ties.
TEST(LayerPartition, IsTheBestOfAllCuts) {
  const PhiloxKey key = philox_key(3, "costs");
  std::uint64_t draws = 0;
  for (int units = 1; units <= 10; ++units)
    for (int parts = 1; parts <= units; ++parts)
      for (int round = 0; round < 8; ++round) {
        std::vector<double> costs;
        for (int i = 0; i < units; ++i) costs.push_back(philox_at(key, draws++)[0] % 6);
        EXPECT_EQ(counts_of(partition_units(costs, parts)), best_by_trying(costs, parts))
            << units << " units in " << parts << ", round " << round;
      }
}

TEST(LayerPartition, TiesGoToTheFront) {
  // The result is not 3 3 3 1, which has the same largest part; also with costs that have no exact
  // binary representation.
  EXPECT_EQ(counts_of(partition_units(std::vector(10, 0.1), 4)), (Counts{3, 3, 2, 2}));
  EXPECT_EQ(counts_of(partition_units(std::vector(62, 1.0 / 3), 8)),
            (Counts{8, 8, 8, 8, 8, 8, 7, 7}));
}

TEST(LayerPartition, HeadAndEmbeddingAreUnits) {
  // Embedding and head each cost as much as a layer: the first and last stage get one layer less.
  EXPECT_EQ(counts_of(partition_layers(alike(1, 1, 1, 30), 4, 1)), (Counts{8, 8, 8, 8}));
  EXPECT_EQ(partition_layers(alike(1, 1, 1, 30), 4, 1)[3],
            (UnitRange{24, 8}));  // layers 24 ... 30, head
  // A free embedding and a head of two layers: stages of 4, 4, 3 and 1 + 2.
  EXPECT_EQ(counts_of(partition_layers(alike(0, 1, 2, 12), 4, 1)), (Counts{1 + 4, 4, 3, 1 + 1}));
  // A head that costs as much as the share of a stage is a stage of its own.
  EXPECT_EQ(counts_of(partition_layers(alike(0, 1, 4, 12), 4, 1)), (Counts{1 + 4, 4, 4, 1}));
  EXPECT_EQ(partition_layers(alike(0, 1, 0, 6), 2, 3).size(), 6u);
  EXPECT_EQ(counts_of(partition_layers(alike(0, 1, 0, 5), 1, 1)), (Counts{7}));
}

TEST(LayerPartition, EveryLayerIsSomewhere) {
  for (int layers = 1; layers <= 24; ++layers)
    for (int p = 1; p <= layers; ++p)
      for (int v = 1; p * v <= layers; ++v) {
        const Counts counts = counts_of(partition_layers(alike(0.2, 1, 1.3, layers), p, v));
        EXPECT_EQ(counts.size(), static_cast<std::size_t>(p * v));
        EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), layers + 2);
      }
}

TEST(LayerPartition, RefusesMoreStagesThanLayers) {
  const auto error = [](int layers, int p, int v) {
    EXPECT_THROW(partition_layers(alike(0, 1, 0, layers), p, v), DeckError);
    return test::error_of([&] { partition_layers(alike(0, 1, 0, layers), p, v); });
  };
  EXPECT_EQ(
      error(12, 16, 1),
      "parallel.pipeline=16 with parallel.virtual_stages=1 cuts the model into 16 pieces, but "
      "it has 12 layers | nearest legal: parallel.pipeline=12");
  EXPECT_NE(
      error(12, 8, 2).find("nearest legal: parallel.pipeline=6, or parallel.virtual_stages=1"),
      std::string::npos);
  EXPECT_NE(error(4, 1, 5).find("nearest legal: parallel.pipeline=1 with "
                                "parallel.virtual_stages=4"),
            std::string::npos);
  EXPECT_NE(error(4, 0, 1).find("parallel.pipeline: 0 is below 1"), std::string::npos);
  EXPECT_NE(error(4, 1, -1).find("parallel.virtual_stages: -1 is below 1"), std::string::npos);
  EXPECT_NE(error(0, 1, 1).find("model.n_layer: 0 is below 1"), std::string::npos);
  EXPECT_EQ(test::error_of([] {
              partition_units({1, 2}, 3);
            }),
            "2 units cannot be cut into 3 parts | the nearest legal value is 2");
  EXPECT_EQ(test::error_of([] {
              partition_units({1, -2}, 1);
            }),
            "unit 1 has cost -2 | give a finite number that is not negative");
}

}  // namespace
}  // namespace choir
