#include "src/train/loop/save_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace choir {
namespace {

constexpr double kHour = 3600;

CheckpointSection section(std::int64_t interval, double mtbf) {
  CheckpointSection made;
  made.interval = interval;
  made.mtbf = mtbf;
  return made;
}

// Daly's paper works with minutes: saves of 5 minutes, failures every 24 hours: sqrt(2 * 5 * 1440)
// = 120 minutes.
TEST(SaveSchedule, TheIntervalOfYoung) {
  EXPECT_DOUBLE_EQ(best_save_interval(5 * 60, 24 * kHour), 120 * 60);
  EXPECT_DOUBLE_EQ(best_save_interval(0.5, 1 * kHour), 60);
}

// No other interval may lose less than the chosen one: searched by brute force.
TEST(SaveSchedule, NoOtherIntervalLosesLess) {
  for (const double cost : {0.01, 1.0, 60.0})
    for (const double mtbf : {kHour, 24 * kHour}) {
      const double best = best_save_interval(cost, mtbf), least = lost_share(best, cost, mtbf);
      for (double other = best / 8; other < 8 * best; other *= 1.01)
        EXPECT_GE(lost_share(other, cost, mtbf), least * (1 - 1e-12));
      EXPECT_NEAR(least, std::sqrt(2 * cost / mtbf), 1e-12);  // by hand: C/W + W/2M at that W
    }
}

TEST(SaveSchedule, FailuresComeAsOftenAsThereAreNodes) {
  EXPECT_DOUBLE_EQ(assumed_mtbf(section(1, 0), 1), 24 * kHour);
  EXPECT_DOUBLE_EQ(assumed_mtbf(section(1, 0), 100), 10 * kHour);
  EXPECT_DOUBLE_EQ(assumed_mtbf(section(1, 7), 100), 7 * kHour);
}

TEST(SaveSchedule, FixedIntervals) {
  SaveSchedule every(section(5, 0), 1);
  every.begin(12, false);
  for (std::int64_t step = 13; step < 40; ++step) EXPECT_EQ(every.due(step), step % 5 == 0);
  SaveSchedule never(section(0, 0), 1);
  never.begin(0, true);
  for (std::int64_t step = 1; step < 40; ++step) EXPECT_FALSE(never.due(step));
}

TEST(SaveSchedule, AMilestoneIsSavedInARunThatSaves) {
  SaveSchedule every(section(5, 0), 1, 17);
  every.begin(12, false);
  for (std::int64_t step = 13; step < 40; ++step)
    EXPECT_EQ(every.due(step), step % 5 == 0 || step == 17);
  SaveSchedule never(section(0, 0), 1, 17);
  never.begin(0, false);
  EXPECT_FALSE(never.due(17));
  EXPECT_FALSE(SaveSchedule(section(5, 0), 1).due(-1));
}

TEST(SaveSchedule, TheFirstSaveMayBeEarly) {
  SaveSchedule schedule(section(500, 0), 1);
  schedule.begin(7, true);
  EXPECT_TRUE(schedule.due(8));
  EXPECT_TRUE(schedule.early(8));
  EXPECT_FALSE(schedule.due(9));
  EXPECT_TRUE(schedule.due(500));
}

TEST(SaveSchedule, AdviceOnceAndOnlyIfItFits) {
  // By hand: the best interval is sqrt(2 x 2 s x 3600 s) = 120 s, or 120 steps of a second, with a
  // loss of sqrt(2 x 2 / 3600) = 3.3 %; an interval of one step loses 2 s of 1 s.
  const SaveCost cost{.stall = 2, .whole = 2, .step_seconds = 1};
  SaveSchedule schedule(section(1, 1), 1, -1, 120);
  const std::string advice = schedule.saved(1, cost);
  EXPECT_TRUE(advice.starts_with("advice: saves every step cost ")) << advice;
  EXPECT_NE(advice.find("checkpoint.interval=120, or \"auto\", it is 3.3 %"), std::string::npos)
      << advice;
  EXPECT_EQ(schedule.saved(2, cost), "");
  EXPECT_EQ(SaveSchedule(section(1, 1), 1, -1, 119).saved(1, cost), "");
}

TEST(SaveSchedule, AutoFollowsWhatSavesCost) {
  SaveSchedule schedule(section(CheckpointSection::kAutoInterval, 1), 1);
  schedule.begin(100, false);
  EXPECT_TRUE(schedule.due(110));
  // sqrt(2 * 0.5 * 3600) = 60 s of 0.25 s.
  const std::string line = schedule.saved(110, {.stall = 0.5, .whole = 2, .step_seconds = 0.25});
  EXPECT_NE(line.find("240 steps; the next is step 350"), std::string::npos) << line;
  for (std::int64_t step = 111; step < 400; ++step) EXPECT_EQ(schedule.due(step), step == 350);
  // A save that takes 50 s is allowed 100 s.
  const std::string slow = schedule.saved(350, {.stall = 0.5, .whole = 50, .step_seconds = 0.25});
  EXPECT_NE(slow.find("the next is step 750"), std::string::npos) << slow;
  EXPECT_NE(slow.find("a save takes"), std::string::npos) << slow;
}

// 1.5 GB at 50 MB/s take 30 s; the estimate for a file system that is fast at the moment is limited
// to 200 MB/s per node.
TEST(SaveSchedule, TheFirstSaveIsGivenWhatTheFileSystemTakes) {
  EXPECT_NEAR(expected_first_save(1.5e9, 1, 50e6), 30, 0.2);
  EXPECT_NEAR(expected_first_save(1.5e9, 1, 5e9), 7.5, 0.2);
  EXPECT_NEAR(expected_first_save(1.5e9, 1, 0), 7.5, 0.2);
  EXPECT_NEAR(expected_first_save(1.5e9, 4, 0), 1.875, 0.2);
  EXPECT_GT(expected_first_save(0, 1, 0), 0);
}

TEST(SaveSchedule, ALongFirstSaveIsMadeEarly) {
  EXPECT_FALSE(measure_early(30, 0)) << "no walltime";
  EXPECT_FALSE(measure_early(30, 3600));
  EXPECT_TRUE(measure_early(30, 290));
}

TEST(SaveSchedule, AWalltimeWithoutRoomForSavesIsSaid) {
  EXPECT_EQ(short_walltime(30, 60, 0), "");
  EXPECT_EQ(short_walltime(30, 60, 121), "");
  const std::string line = short_walltime(30, 60, 119);
  EXPECT_NE(line.find("run.walltime is 1m 59s"), std::string::npos) << line;
  EXPECT_NE(line.find("a save is expected to take 30.0 s"), std::string::npos) << line;
  EXPECT_NE(line.find("raise run.walltime"), std::string::npos) << line;
}

TEST(SaveSchedule, AdviceOnceAndOnlyWhereItPays) {
  const SaveCost cost{.stall = 0.5, .whole = 2, .step_seconds = 0.25};  // best: 240 steps
  for (const auto& [interval, told] :
       {std::pair{4, true}, {100, false}, {240, false}, {400, false}, {40000, true}}) {
    SaveSchedule schedule(section(interval, 1), 1);
    schedule.begin(0, false);
    const std::string line = schedule.saved(interval, cost);
    EXPECT_EQ(!line.empty(), told) << interval << ": " << line;
    EXPECT_EQ(line.find("checkpoint.interval=240,") != std::string::npos, told) << line;
    EXPECT_EQ(schedule.saved(2 * interval, cost), "");
  }
}

}  // namespace
}  // namespace choir
