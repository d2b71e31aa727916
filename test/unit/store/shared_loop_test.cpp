// Tests that every iteration runs once, in whatever order ranks arrive, and that no rank continues
// before the last has ended.
#include "src/store/snapshot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace choir {
namespace {

TEST(SharedLoop, GivesEachIterationToOne) {
  constexpr std::int64_t kCount = 10'000;
  SharedLoop loop;
  for (int round = 0; round < 20; ++round) {
    std::vector<int> taken(kCount);  // not atomic: wait() makes them visible
    loop.begin(kCount, [&](std::int64_t i) { ++taken[static_cast<std::size_t>(i)]; });
    EXPECT_FALSE(loop.ended());
    std::thread early([&] { loop.help(); });
    loop.help_as_team();
    loop.wait();
    EXPECT_TRUE(loop.ended());
    EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), kCount);
    early.join();
  }
}

TEST(SharedLoop, WaitsForWhatAnotherHasTaken) {
  SharedLoop loop;
  std::atomic<bool> taken{false}, held{true};
  int left = 2;
  loop.begin(2, [&](std::int64_t i) {
    if (i == 0) {
      taken = true;
      while (held) std::this_thread::yield();
      left = 0;
    }
  });
  std::thread slow([&] { loop.help(); });
  while (!taken) std::this_thread::yield();
  loop.help();
  EXPECT_FALSE(loop.ended());
  std::thread late([&] { held = false; });
  loop.wait();
  EXPECT_EQ(left, 0);
  slow.join(), late.join();
}

TEST(SharedLoop, OfNothingHasEnded) {
  SharedLoop loop;
  EXPECT_TRUE(loop.ended());
  loop.begin(0, [](std::int64_t) { FAIL(); });
  loop.help();
  loop.help_as_team();
  loop.wait();
  EXPECT_TRUE(loop.ended());
}

}  // namespace
}  // namespace choir
