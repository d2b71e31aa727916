#include "src/store/directory.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace choir {
namespace {

using Steps = std::vector<std::int64_t>;

const std::vector<RetentionEntry> kFive{{100, 2.5}, {200, 2.1}, {300, 2.3}, {400, {}}, {500, 2.2}};

TEST(CheckpointRetention, KeepsTheLast) {
  EXPECT_EQ(steps_to_delete(kFive, {2, 0, false}, 500), (Steps{100, 200, 300}));
  EXPECT_EQ(steps_to_delete(kFive, {5, 0, false}, 500), Steps{});
  EXPECT_EQ(steps_to_delete(kFive, {9, 0, false}, 500), Steps{});
}

TEST(Retention, AChosenStepIsKept) {
  EXPECT_EQ(steps_to_delete(kFive, {1, 0, false, 200}, 500), (Steps{100, 300, 400}));
  EXPECT_EQ(steps_to_delete(kFive, {1, 0, false, 250}, 500), (Steps{100, 200, 300, 400}));
}

TEST(CheckpointRetention, KeepsEveryNthAndTheBest) {
  EXPECT_EQ(steps_to_delete(kFive, {1, 0, true}, 500), (Steps{100, 300, 400}));
  EXPECT_EQ(steps_to_delete(kFive, {1, 300, false}, 500), (Steps{100, 200, 400}));
  EXPECT_EQ(steps_to_delete(kFive, {1, 300, true}, 500), (Steps{100, 400}));
}

TEST(CheckpointRetention, OrderOfTheListDoesNotMatter) {
  std::vector<RetentionEntry> reversed(kFive.rbegin(), kFive.rend());
  EXPECT_EQ(steps_to_delete(reversed, {1, 300, true}, 500), (Steps{100, 400}));
}

TEST(CheckpointRetention, NeverTheOnlyOneNorTheOneJustSaved) {
  EXPECT_EQ(steps_to_delete({{7, {}}}, {0, 0, false}, 7), Steps{});
  EXPECT_EQ(steps_to_delete({{7, {}}}, {-3, 0, false}, -1), Steps{});
  EXPECT_EQ(steps_to_delete(kFive, {1, 0, false}, 100), (Steps{200, 300, 400}));
}

TEST(CheckpointRetention, TheEarliestOfEquallyGoodIsBestAndNanIsNot) {
  EXPECT_EQ(steps_to_delete({{1, 2.0}, {2, 2.0}, {3, 9.0}}, {1, 0, true}, 3), Steps{2});
  EXPECT_EQ(steps_to_delete({{1, std::nan("")}, {2, 8.0}, {3, 9.0}}, {1, 0, true}, 3), Steps{1});
}

}  // namespace
}  // namespace choir
