// Learning rates against closed forms at the corners.
#include "src/optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace choir {
namespace {

using Kind = LrSchedule::Kind;

LrSchedule schedule(Kind kind, std::int64_t warmup) {
  return {.kind = kind, .peak = 6e-4, .floor = 6e-5, .warmup_steps = warmup, .decay_steps = 1100};
}

TEST(LrSchedule, WarmUpIsLinearAndNeverZero) {
  for (const Kind kind : {Kind::constant, Kind::cosine, Kind::linear, Kind::inverse_sqrt}) {
    const LrSchedule s = schedule(kind, 100);
    EXPECT_DOUBLE_EQ(s.at(0), 6e-4 / 101);
    EXPECT_DOUBLE_EQ(s.at(49), 6e-4 * 50 / 101);
    EXPECT_DOUBLE_EQ(s.at(99), 6e-4 * 100 / 101);
    EXPECT_DOUBLE_EQ(s.at(100), 6e-4);  // the peak itself
  }
}

TEST(LrSchedule, Constant) {
  EXPECT_EQ(schedule(Kind::constant, 0).at(0), 6e-4);
  EXPECT_EQ(schedule(Kind::constant, 0).at(1'000'000), 6e-4);
}

TEST(LrSchedule, Cosine) {
  const LrSchedule s = schedule(Kind::cosine, 100);
  EXPECT_NEAR(s.at(600), (6e-4 + 6e-5) / 2, 1e-18);                                  // half way
  EXPECT_NEAR(s.at(350), 6e-5 + 0.5 * (1 + std::sqrt(0.5)) * (6e-4 - 6e-5), 1e-18);  // a quarter
  EXPECT_GT(s.at(1099), 6e-5);
  EXPECT_EQ(s.at(1100), 6e-5);
  EXPECT_EQ(s.at(5000), 6e-5);
}

TEST(LrSchedule, Linear) {
  const LrSchedule s = schedule(Kind::linear, 100);
  EXPECT_NEAR(s.at(350), 6e-4 - 0.25 * (6e-4 - 6e-5), 1e-18);
  EXPECT_EQ(s.at(1100), 6e-5);
}

TEST(LrSchedule, InverseSquareRoot) {
  const LrSchedule s = schedule(Kind::inverse_sqrt, 100);
  EXPECT_NEAR(s.at(400), 3e-4, 1e-18);  // sqrt(100 / 400)
  EXPECT_NEAR(s.at(2500), 1.2e-4, 1e-18);
  EXPECT_EQ(s.at(1'000'000), 6e-5);  // not below min_lr
  EXPECT_EQ(schedule(Kind::inverse_sqrt, 0).at(0), 6e-4);
  EXPECT_NEAR(schedule(Kind::inverse_sqrt, 0).at(9), 2e-4, 1e-18);
}

TEST(LrSchedule, DecayThatEndsInsideTheWarmUp) {
  LrSchedule s = schedule(Kind::cosine, 100);
  s.decay_steps = 50;
  EXPECT_DOUBLE_EQ(s.at(99), 6e-4 * 100 / 101);
  EXPECT_EQ(s.at(100), 6e-5);
  s.decay_steps = 100;
  EXPECT_EQ(s.at(100), 6e-5);  // no division 0 / 0
}

}  // namespace
}  // namespace choir
