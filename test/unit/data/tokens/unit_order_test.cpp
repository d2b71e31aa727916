#include "src/data/text/unit_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using Place = std::pair<std::size_t, std::int64_t>;  ///< unit, token in it

/// The tokens of samples as places, one sample after another, and where epochs begin.
std::vector<Place> places(UnitOrder& order, std::int64_t first, std::int64_t count) {
  std::vector<Place> made;
  for (const UnitOrder::Segment& segment : order.segments(first, count))
    for (const UnitOrder::Piece& piece : segment.pieces)
      for (std::int64_t i = 0; i < piece.count; ++i)
        made.emplace_back(order.unit_at(piece.place), piece.first + i);
  return made;
}

const std::vector<std::int64_t> kTokens{7, 0, 12, 1, 30, 5};
constexpr std::int64_t kBlock = 4, kWindows = (55 - 1) / kBlock;

TEST(UnitOrder, AnEpochIsEveryUnitOnceInItsOrder) {
  UnitOrder order(kTokens, kBlock, 3);
  EXPECT_EQ(order.windows_per_epoch(), kWindows);
  std::set<std::vector<Place>> orders;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::vector<Place> all = places(order, epoch * kWindows, kWindows);
    EXPECT_EQ(std::ssize(all), kWindows * kBlock + 1);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
    for (std::size_t i = 1; i < all.size(); ++i) {
      const auto [unit, token] = all[i];
      if (token > 0)
        EXPECT_EQ(all[i - 1], Place(unit, token - 1));
      else
        EXPECT_EQ(all[i - 1].second + 1, kTokens[all[i - 1].first]);
    }
    orders.insert(all);
  }
  EXPECT_GT(orders.size(), 15u);
}

/// The tokens of a range of samples do not depend on the ranges that were asked for before.
TEST(UnitOrder, IsAPureFunctionOfTheSample) {
  UnitOrder straight(kTokens, kBlock, 3);
  std::vector<std::vector<Place>> expected;
  for (std::int64_t sample = 0; sample < 3 * kWindows; ++sample)
    expected.push_back(places(straight, sample, 1));
  for (const std::int64_t step : {2, 5, 40}) {
    UnitOrder order(kTokens, kBlock, 3);
    for (std::int64_t first = 2 * kWindows - 1; first >= 0; first -= step) {
      std::vector<Place> tokens;
      for (std::int64_t i = 0; i < step && first + i < 3 * kWindows; ++i) {
        const auto& next = expected[static_cast<std::size_t>(first + i)];
        const bool continues = i > 0 && (first + i) % kWindows != 0;
        tokens.insert(tokens.end(), next.begin() + (continues ? 1 : 0), next.end());
      }
      EXPECT_EQ(places(order, first, std::min(step, 3 * kWindows - first)), tokens) << first;
    }
  }
  UnitOrder other(kTokens, kBlock, 4);
  EXPECT_NE(places(other, 0, kWindows), places(straight, 0, kWindows));
}

TEST(UnitOrder, TooFewTokensAreRefused) {
  EXPECT_DATA_ERROR(UnitOrder({2, 2}, 4, 0), "4 tokens are fewer than a window of 4");
  EXPECT_EQ(UnitOrder({2, 3}, 4, 0).windows_per_epoch(), 1);
}

}  // namespace
}  // namespace choir
