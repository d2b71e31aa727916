#include "src/comm/watch/watchdog.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace choir {
namespace {

TEST(AbortHook, RunsThoseThatAreThere) {
  std::atomic<int> first = 0, second = 0;
  const AbortHook one([&] { ++first; });
  {
    const AbortHook two([&] { ++second; });
    EXPECT_TRUE(AbortHook::run_all(10));
  }
  EXPECT_TRUE(AbortHook::run_all(10));
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 1);
}

TEST(AbortHook, DoesNotWaitForEver) {
  static std::atomic<bool> go = false, done = false;
  {
    const AbortHook slow([] {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      done = true;
    });
    EXPECT_FALSE(AbortHook::run_all(0.05));
    EXPECT_FALSE(done);
    go = true;
  }
  EXPECT_TRUE(done) << "the hook goes when nobody runs it any more";
}

}  // namespace
}  // namespace choir
