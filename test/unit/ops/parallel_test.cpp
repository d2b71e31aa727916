// Tests how threads share work: each part is done once, and no thread waits for one that has no
// core.
#include "kernels/cpu/parallel.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "src/core/quantities.hpp"

namespace choir::cpu {
namespace {

/// Calls omp_set_num_threads() for the lifetime of this object.
class Threads {
 public:
  explicit Threads(int count) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

TEST(Parallel, RangesCoverEveryItemOnce) {
  for (const int threads : {1, 2, 3, 70})
    for (const std::int64_t items : {0, 1, 5, 64, 1000})
      for (const std::int64_t item_elements : {1, 1000, 100000}) {
        const Threads limit(threads);
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
        parallel_ranges(items, item_elements, [&](std::int64_t first, std::int64_t last) {
          EXPECT_LT(first, last);
          for (std::int64_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        for (const auto& times : seen)
          EXPECT_EQ(times, 1) << items << " items of " << item_elements << " by " << threads;
      }
}

TEST(Parallel, AThreadTakesItsOwnShareFirst) {
  TaskShares shares(10, 3);
  std::vector<std::int64_t> order;
  shares.take(1, [&](std::int64_t task) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{3, 4, 5, 6, 7, 8, 9, 0, 1, 2}));
}

// The first task does not end before all others: other threads must do the rest of its thread's
// share.
TEST(Parallel, OthersDoWhatALateThreadHasLeft) {
  constexpr std::int64_t kTasks = 8;
  constexpr double kPatience = 20;  // seconds
  const Threads limit(2);
  std::atomic<std::int64_t> done = 0;
  parallel_tasks(kTasks, [&](std::int64_t task) {
    const double start = now_seconds();
    while (task == 0 && done < kTasks - 1 && now_seconds() < start + kPatience) {
    }
    if (task == 0) {
      EXPECT_EQ(done, kTasks - 1);
    }
    ++done;
  });
  EXPECT_EQ(done, kTasks);
}

}  // namespace
}  // namespace choir::cpu
