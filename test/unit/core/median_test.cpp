#include "src/core/stats.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace choir
