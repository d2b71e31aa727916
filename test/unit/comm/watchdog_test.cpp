#include "src/comm/watch/watchdog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "src/core/quantities.hpp"
#include "test/support/measured.hpp"

namespace choir {
namespace {

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

struct Caught {
  std::atomic<int> count{0};
  std::string report;  // written before count, read after
  Watchdog::Options options(double timeout) {
    return {timeout, 3, false, "node17", [this](const std::string& text) {
              report = text;
              ++count;
            }};
  }
  bool within(double seconds) {
    for (double waited = 0; waited < seconds && count == 0; waited += 0.005) sleep_seconds(0.005);
    return count > 0;
  }
};

TEST(Watchdog, NamesRankHostPhaseAndTime) {
  Caught caught;
  Watchdog dog(caught.options(0.1));
  dog.beat("step 12: all_reduce dp");
  ASSERT_TRUE(caught.within(10));
  for (const char* word : {"rank 3", "node17", "step 12: all_reduce dp", "exit code 5"})
    EXPECT_NE(caught.report.find(word), std::string::npos) << word << " in " << caught.report;
  sleep_seconds(0.3);
  EXPECT_EQ(caught.count, 1) << "one report is enough";
}

TEST(Watchdog, BeatsKeepItQuiet) {
  Caught caught;
  Watchdog dog(caught.options(2.0));
  double longest = 0;
  for (int i = 0; i < 30; ++i) {
    const double start = now_seconds();
    dog.beat("forward");
    sleep_seconds(0.1);
    longest = std::max(longest, now_seconds() - start);
  }
  test::print_measured("longest time between two beats", longest, "s", "below", 2);
  EXPECT_EQ(caught.count, 0);
}

TEST(Watchdog, WaitingForAnotherRankIsWatchedToo) {
  Caught caught;
  Watchdog dog(caught.options(100));
  dog.beat("forward");
  dog.await("waiting for stage 1", 0.1);
  ASSERT_TRUE(caught.within(10));
  EXPECT_NE(caught.report.find("\"waiting for stage 1\""), std::string::npos) << caught.report;
}

TEST(Watchdog, RestsUntilTheFirstBeatAndAfterRest) {
  Caught caught;
  Watchdog dog(caught.options(0.05));
  sleep_seconds(0.2);
  EXPECT_EQ(caught.count, 0);
  dog.beat("a long name for a phase ", 100);
  dog.rest();
  sleep_seconds(0.2);
  EXPECT_EQ(caught.count, 0);
}

TEST(Watchdog, APhaseMayHaveItsOwnTime) {
  Caught caught;
  Watchdog dog(caught.options(0.05));
  dog.beat("first step", 30);
  sleep_seconds(0.3);
  EXPECT_EQ(caught.count, 0);
  dog.beat("second step");
  EXPECT_TRUE(caught.within(10));
}

TEST(Watchdog, ZeroIsOff) {
  Caught caught;
  Watchdog dog(caught.options(0));
  EXPECT_FALSE(dog.on());
  dog.beat("anything");
  sleep_seconds(0.05);
  EXPECT_EQ(caught.count, 0);
}

TEST(Watchdog, ReportsAFailureThatLasts) {
  Caught caught;
  std::atomic<bool> fails = false;
  const HealthCheck healthy([] { return std::string(); });
  const HealthCheck check(
      [&] { return fails ? std::string("NCCL on dp: network error") : std::string(); });
  Watchdog::Options options = caught.options(300);
  options.checks_health = true;
  Watchdog dog(options);
  dog.beat("step 12");
  sleep_seconds(0.4);
  EXPECT_EQ(caught.count, 0);
  fails = true;
  ASSERT_TRUE(caught.within(10));
  for (const char* part : {"rank 3", "node17",
                           "failed in phase \"step 12\": NCCL on dp: network "
                           "error",
                           "exit code 5"})
    EXPECT_NE(caught.report.find(part), std::string::npos) << part << " in " << caught.report;
  sleep_seconds(0.6);
  EXPECT_EQ(caught.count, 1) << "one report is enough";
}

// The main thread reports the failures of its own calls between two polls.
TEST(Watchdog, AFailureThatIsGoneAtTheNextPollIsNotReported) {
  Caught caught;
  std::atomic<int> polls = 0;
  const HealthCheck check(
      [&] { return ++polls % 2 == 1 ? std::string("a passing failure") : std::string(); });
  Watchdog::Options options = caught.options(0.1);
  options.checks_health = true;
  Watchdog dog(options);
  while (polls < 6) sleep_seconds(0.01);
  EXPECT_EQ(caught.count, 0);
}

TEST(Watchdog, TheUsualTimeMayChange) {
  Caught caught;
  Watchdog dog(caught.options(0.05));
  dog.allow(30);
  dog.beat("first step");
  sleep_seconds(0.3);
  EXPECT_EQ(caught.count, 0);
  dog.allow(0.05);
  dog.beat("second step");
  EXPECT_TRUE(caught.within(10));
}

TEST(Watchdog, MentionsALongPhaseAgainAndAgain) {
  Caught caught;
  std::atomic<int> lines = 0;
  std::string line;
  Watchdog::Options options = caught.options(0.5);
  options.still_seconds = 0.1;
  options.on_line = [&](const std::string& text) {
    if (lines == 0) line = text;
    ++lines;
  };
  Watchdog dog(options);
  dog.beat("checkpoint", 30);
  for (int i = 0; i < 2000 && lines < 3; ++i) sleep_seconds(0.005);
  EXPECT_GE(lines, 3);
  EXPECT_EQ(caught.count, 0);
  dog.rest();
  for (const char* words : {"rank 3 on node17 is still in phase \"checkpoint\"", "allowed: 30"})
    EXPECT_NE(line.find(words), std::string::npos) << line;
}

TEST(Watchdog, LongPhasesAreCut) {
  Caught caught;
  Watchdog dog(caught.options(0.05));
  dog.beat(std::string(500, 'x'));
  ASSERT_TRUE(caught.within(10));
  EXPECT_NE(caught.report.find(std::string(120, 'x')), std::string::npos);
  EXPECT_EQ(caught.report.find(std::string(121, 'x')), std::string::npos);
}

}  // namespace
}  // namespace choir
