// Learning rates against closed forms at the corners.
#include "src/optim/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace choir {
namespace {

using Kind = LrSchedule::Kind;

LrSchedule schedule(Kind kind, std::int64_t warmup) {
  return {.kind = kind, .peak = 6e-4, .floor = 6e-5, .warmup_steps = warmup, .decay_steps = 1100};
}

TEST(LrSchedule, WarmUpIsLinearAndNeverZero) {
  for (const Kind kind :
       {Kind::constant, Kind::cosine, Kind::linear, Kind::inverse_sqrt, Kind::wsd}) {
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

// Megatron-LM's get_lr after n steps; its warm-up counts differently and is left out.
TEST(LrSchedule, WarmUpStableDecayIsThatOfMegatron) {
  using Tail = LrSchedule::Tail;
  const std::vector<std::int64_t> steps{10, 11, 80, 81, 85, 90, 95, 99, 100, 101};
  const std::map<Tail, std::vector<double>> golden{
      {Tail::linear, {1, 1, 1, 0.955, 0.775, 0.55, 0.325, 0.14500000000000005, 0.1, 0.1}},
      {Tail::cosine,
       {1, 1, 1, 0.994459753267812, 0.8681980515339464, 0.55, 0.23180194846605365,
        0.10554024673218806, 0.1, 0.1}},
      {Tail::exponential,
       {1, 1, 1, 0.9386853920647221, 0.7136135474566861, 0.47279220613578565, 0.2702864035024489,
        0.13173843145723985, 0.1, 0.1}},
      {Tail::minus_sqrt,
       {1, 1, 1, 0.798753882025019, 0.55, 0.36360389693210715, 0.22057713659400527,
        0.1227885089671933, 0.1, 0.1}}};
  for (const auto& [tail, values] : golden) {
    const LrSchedule s{.kind = Kind::wsd,
                       .tail = tail,
                       .peak = 1.0,
                       .floor = 0.1,
                       .warmup_steps = 10,
                       .decay_steps = 100,
                       .tail_steps = 20};
    EXPECT_EQ(s.tail_begin(), 80);
    for (std::size_t i = 0; i < steps.size(); ++i)
      EXPECT_NEAR(s.at(steps[i]), values[i], 1e-15) << "step " << steps[i];
  }
}

TEST(LrSchedule, TheStablePhaseDoesNotDependOnTheTail) {
  LrSchedule s = schedule(Kind::wsd, 100);
  EXPECT_EQ(s.tail_begin(), -1);
  EXPECT_EQ(s.at(1'000'000), 6e-4);  // without a tail it never ends
  for (const std::int64_t tail : {1, 7, 300, 1000}) {
    s.tail_steps = tail;
    for (std::int64_t step = 100; step <= s.tail_begin(); ++step)
      EXPECT_EQ(s.at(step), 6e-4) << "not one bit below the peak";
    EXPECT_LT(s.at(s.tail_begin() + 1), 6e-4);
    EXPECT_EQ(s.at(1100), 6e-5);
  }
  EXPECT_EQ(s.tail_begin(), 100) << "the whole run after the warm-up";
  EXPECT_EQ(schedule(Kind::cosine, 100).tail_begin(), -1);
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
