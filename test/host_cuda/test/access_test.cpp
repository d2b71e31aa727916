// Tests of the arithmetic that launchers and kernels share, called directly.
#include "kernels/cuda/access.cuh"

#include <gtest/gtest.h>

#include <vector>

namespace choir::cuda {
namespace {

TEST(Divisor, IsExactUpToTheLastItem) {
  for (const std::int64_t d : {1, 2, 3, 5, 7, 64, 96, 641, 768, 50257, 65535, 65536, 65537,
                               (1 << 30) - 1, (1 << 30) + 1, 2147483647}) {
    const Divisor divisor(d);
    for (std::int64_t q : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, kMostItems / d / 2,
                           kMostItems / d - 1, kMostItems / d})
      for (const std::int64_t n : {q * d - 1, q * d, q * d + 1, kMostItems})
        if (n >= 0 && n <= kMostItems) {
          EXPECT_EQ(divisor.quotient(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
          EXPECT_EQ(divisor.remainder(static_cast<std::uint32_t>(n)), n % d) << n << " / " << d;
        }
  }
  const Divisor beyond(std::int64_t{1} << 40);
  EXPECT_EQ(beyond.quotient(2147483647u), 0u);
  EXPECT_EQ(beyond.remainder(2147483647u), 2147483647u);
}

TEST(RowParts, CoverAllRowsAndKeepGroupsTogether) {
  for (const std::int64_t rows : {1, 5, 12, 40})
    for (const std::int64_t group : {1, 4, 9, 100})
      for (const std::int64_t most_items : {3, 6, 24, 1000}) {
        std::int64_t next = 0;
        for_row_parts(
            rows, 3, group,
            [&](std::int64_t first, std::int64_t n) {
              EXPECT_EQ(first, next);
              EXPECT_GE(n, 1);
              EXPECT_LE(3 * n, most_items);
              // Whole groups starting at their first row, or rows inside one group.
              if (first % group != 0 || n < group) {
                EXPECT_LE(first % group + n, group);
              } else {
                EXPECT_TRUE(n % group == 0 || first + n == rows) << n << " rows at " << first;
              }
              next = first + n;
            },
            most_items);
        EXPECT_EQ(next, rows);
      }
}

}  // namespace
}  // namespace choir::cuda
