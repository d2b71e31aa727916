#include "src/train/loop/diagnosis.hpp"

#include <gtest/gtest.h>

#include "test/support/has.hpp"

namespace choir {
namespace {

using test::has;

/// Ten steps of 1 s on two even ranks: these shares, the rest is "other".
RunTimes steps(double data, double forward, double backward, double comm) {
  RunTimes times;
  times.phases.steps = 10;
  times.phases.seconds = {10 * data,
                          10 * forward,
                          10 * backward,
                          10 * comm,
                          0,
                          10 * (1 - data - forward - backward - comm)};
  times.own = {1 - comm, 1 - comm};
  times.outside = {0, 0};
  times.hosts = {"a", "b"};
  return times;
}

TEST(Diagnosis, NamesWhatIsSlow) {
  EXPECT_EQ(diagnosis(steps(0.01, 0.3, 0.6, 0.05)),
            "kernels: forward and backward take 90 % of a step; nothing else stands out");
  EXPECT_TRUE(has(diagnosis(steps(0.4, 0.2, 0.3, 0.05)), "slow data: a step waits 40 %"));
  EXPECT_TRUE(has(diagnosis(steps(0.0, 0.2, 0.3, 0.45)), "slow network: communication takes 45 %"));
  RunTimes between = steps(0.01, 0.3, 0.6, 0.05);
  between.between_steps = 0.3;
  EXPECT_TRUE(has(diagnosis(between), "slow between steps: 30 %"));
  EXPECT_EQ(diagnosis(RunTimes()), "");
}

// What rank 0 sees of a rank that is slow, wherever it is, is communication.
TEST(Diagnosis, ASlowRankIsNoSlowNetwork) {
  RunTimes times = steps(0, 0.1, 0.1, 0.79);
  times.own = {0.2, 0.95};
  times.outside = {0, 0.75};
  const std::string text = diagnosis(times);
  EXPECT_TRUE(has(text, "slow rank: rank 1 on b takes 4.75 times as long"));
  EXPECT_TRUE(has(text, "750 ms of its time outside forward and backward"));
  // One that is hardly slower is not to blame.
  times.own = {0.2, 0.23};
  EXPECT_TRUE(has(diagnosis(times), "slow network"));
}

TEST(Diagnosis, OfASingleRank) {
  RunTimes times = steps(0.01, 0.3, 0.6, 0);
  times.own = {1};
  times.outside = {0};
  times.hosts = {"a"};
  EXPECT_TRUE(has(diagnosis(times), "kernels: "));
}

}  // namespace
}  // namespace choir
