// Tests that phases follow each other without gaps.
#include "src/train/step/phase_clock.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace choir {
namespace {

void pass_time(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(PhaseClock, AddsUpToTheStep) {
  PhaseClock clock;
  pass_time(0.01);  // before begin(): belongs to no step
  const double start = now_seconds();
  clock.begin();
  for (const Phase phase :
       {Phase::data, Phase::forward, Phase::backward, Phase::forward, Phase::optimizer}) {
    clock.enter(phase);
    pass_time(0.002);
  }
  clock.transfer(0.001, Phase::comm);
  clock.end();
  const double wall = now_seconds() - start;
  double sum = 0;
  for (int i = 0; i < kPhases; ++i) sum += clock.seconds(static_cast<Phase>(i));
  EXPECT_DOUBLE_EQ(sum, clock.total());
  EXPECT_LE(sum, wall);
  EXPECT_GE(sum, 0.010);
  EXPECT_GE(clock.seconds(Phase::forward), 0.004);
  EXPECT_GE(clock.seconds(Phase::data), 0.002);
  EXPECT_DOUBLE_EQ(clock.seconds(Phase::comm), 0.001);
  clock.begin();
  EXPECT_EQ(clock.total(), 0);
}

// The times of a device that measures them replace those of the host.
TEST(PhaseClock, ReplaysWhatADeviceMeasured) {
  PhaseClock clock;
  double first = -1, last = 0;
  std::vector<std::string> names;
  clock.listen([&](Phase ended, double start, double end, Phase next) {
    if (names.empty()) first = start;
    EXPECT_NEAR(start, names.empty() ? start : last, 1e-12);
    last = end;
    names.push_back(std::string(name_of(ended)) + ">" + name_of(next));
  });
  clock.begin();
  const PhaseSpan spans[] = {{Phase::data, 0.25},
                             {Phase::forward, 1},
                             {Phase::backward, 2},
                             {Phase::forward, 1},
                             {Phase::other, 0.5}};
  pass_time(0.001);
  clock.replay(spans, 100);
  clock.end();
  EXPECT_EQ(clock.seconds(Phase::data), 0.25);
  EXPECT_EQ(clock.seconds(Phase::forward), 2);
  EXPECT_EQ(clock.seconds(Phase::backward), 2);
  EXPECT_EQ(clock.seconds(Phase::other), 0.5) << "nothing of the host's";
  EXPECT_EQ(clock.total(), 4.75);
  EXPECT_DOUBLE_EQ(first, 95.25);
  EXPECT_DOUBLE_EQ(last, 100);
  EXPECT_EQ(names, (std::vector<std::string>{"data>forward", "forward>backward", "backward>forward",
                                             "forward>other", "other>other"}));
  clock.listen({});
  clock.begin();
  pass_time(0.001);
  clock.end();
  EXPECT_GE(clock.total(), 0.001) << "the host's own time again";
}

TEST(PhaseClock, ListenerHearsSpansThatTouch) {
  PhaseClock clock;
  std::vector<std::string> names;
  double last = 0, sum = 0;
  clock.begin();
  clock.listen([&](Phase ended, double start, double end, Phase next) {
    names.push_back(std::string(name_of(ended)) + ">" + name_of(next));
    if (last > 0) {
      EXPECT_EQ(start, last);
    }
    last = end, sum += end - start;
  });
  clock.enter(Phase::forward);
  clock.enter(Phase::backward);
  clock.end();
  EXPECT_EQ(names,
            (std::vector<std::string>{"other>forward", "forward>backward", "backward>other"}));
  EXPECT_NEAR(sum, clock.total(), 1e-12);
}

}  // namespace
}  // namespace choir
