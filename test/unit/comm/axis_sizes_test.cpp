#include "choir/comm/layout.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace choir {
namespace {

// A prime power p^k can be divided among four axes in (k + 3 over 3) ways, independently of the
// other primes.
TEST(AxisSizes, AreAllThereAreAndEachOnce) {
  for (const auto& [ranks, ways] :
       {std::pair(1, 1u), {2, 4u}, {3, 4u}, {4, 10u}, {6, 16u}, {8, 20u}, {12, 40u}, {64, 84u}}) {
    std::set<std::tuple<int, int, int, int>> seen;
    for (const AxisSizes& sizes : axis_sizes_of(ranks)) {
      EXPECT_EQ(sizes.ranks(), ranks);
      seen.emplace(sizes.tensor, sizes.context, sizes.pipeline, sizes.data);
    }
    EXPECT_EQ(seen.size(), ways) << ranks;
    EXPECT_EQ(axis_sizes_of(ranks).size(), ways) << ranks;
  }
}

}  // namespace
}  // namespace choir
