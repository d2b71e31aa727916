// Tests of the decisions of a step, against numbers worked out by hand.
#include "choir/ops/step_control.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/device/null_device.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct Control : ::testing::Test {
  CpuBench cpu;
  ops::StepControl control{.learning_rate = 1e-3, .targets = {8}};
  ops::LossScaling scaling;
  double max_norm = 0;

  void end(double square_sum, double loss_sum = 16) {
    ops::end_step(cpu.stream, {.control = &control,
                               .square_sum = {&square_sum, DType::f64, {1}},
                               .loss_sums = {&loss_sum, DType::f64, {1}},
                               .max_norm = max_norm,
                               .beta1 = 0.5,
                               .beta2 = 0.75,
                               .scaling = scaling});
  }
};

TEST_F(Control, NormClipAndCorrections) {
  max_norm = 1;
  end(9);  // norm 3
  EXPECT_EQ(control.gradient_norm, 3);
  EXPECT_EQ(control.loss, 2);  // 16 over 8 tokens
  EXPECT_EQ(control.gradient_factor, 1 / (3 + 1e-6));
  EXPECT_EQ(control.apply, 1);
  EXPECT_EQ(control.updates, 1);
  EXPECT_EQ(control.correction1, 0.5);
  EXPECT_EQ(control.correction2, 0.25);
  end(0.25);  // norm 1/2: not stretched
  EXPECT_EQ(control.gradient_factor, 1);
  EXPECT_EQ(control.updates, 2);
  EXPECT_EQ(control.correction1, 0.75);
  EXPECT_EQ(control.correction2, 1 - 0.5625);
  max_norm = 0;
  end(1e6);
  EXPECT_EQ(control.gradient_factor, 1) << "0 does not clip";
  EXPECT_EQ(control.loss_scale, 1) << "a window of 0 leaves it alone";
}

TEST_F(Control, LossScaleIsTakenOutAgain) {
  control.loss_scale = 1024;
  max_norm = 2;
  ops::begin_step(cpu.stream, &control);
  EXPECT_EQ(control.loss_factors[0], 128);  // 1024 / 8
  end(4096.0 * 4096.0);                     // of the scaled gradient: norm 4
  EXPECT_EQ(control.gradient_norm, 4);
  EXPECT_EQ(control.gradient_factor, 2 / (4 + 1e-6) / 1024);
  EXPECT_EQ(control.step_loss_scale, 1024);
}

TEST_F(Control, WhatIsNotFiniteIsNotApplied) {
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    control.updates = 5;
    end(bad);
    EXPECT_EQ(control.apply, 0);
    EXPECT_EQ(control.gradient_factor, 0);
    EXPECT_EQ(control.updates, 5);
    end(1, bad);
    EXPECT_EQ(control.apply, 0) << "the loss counts too";
    end(1);
    EXPECT_EQ(control.apply, 1) << "and nothing of it stays";
    EXPECT_EQ(control.updates, 6);
  }
}

// Window 3. "+" is a good step, "-" an overflow; the scale after each, by hand.
TEST_F(Control, LossScaleFollowsTheTable) {
  scaling = {.start = 8, .window = 3};
  control.loss_scale = 8;
  struct Row {
    char step;
    double scale, good;
  };
  const std::vector<Row> table{{'+', 8, 1},  {'+', 8, 2}, {'+', 16, 0},  // three in a row: doubled
                               {'+', 16, 1}, {'-', 8, 0},  // halved; the count starts again
                               {'+', 8, 1},  {'+', 8, 2}, {'-', 4, 0},
                               {'-', 2, 0},  {'-', 1, 0}, {'-', 1, 0},  // never below 1
                               {'+', 1, 1},  {'+', 1, 2}, {'+', 2, 0}};
  int row = 0;
  for (const Row& r : table) {
    const double before = control.loss_scale;
    end(r.step == '+' ? 1.0 : HUGE_VAL);
    EXPECT_EQ(control.step_loss_scale, before) << row;
    EXPECT_EQ(control.loss_scale, r.scale) << row;
    EXPECT_EQ(control.good_steps, r.good) << row;
    EXPECT_EQ(control.apply, r.step == '+' ? 1 : 0) << row;
    ++row;
  }
}

struct Terms : Control {
  void end(std::vector<double> loss_sums) {
    double square_sum = 1;
    ops::end_step(cpu.stream, {.control = &control,
                               .square_sum = {&square_sum, DType::f64, {1}},
                               .loss_sums = {loss_sums.data(),
                                             DType::f64,
                                             {static_cast<std::int64_t>(loss_sums.size())}}});
  }
};

TEST_F(Terms, HaveFactorsOfTheirOwn) {
  control = {.targets = {8, 4, 16}, .weights = {1, 0.5, 3}};
  control.loss_scale = 64;
  ops::begin_step(cpu.stream, &control);
  EXPECT_EQ(control.loss_factors[0], 8);   // 1 / 8 * 64
  EXPECT_EQ(control.loss_factors[1], 8);   // 0.5 / 4 * 64
  EXPECT_EQ(control.loss_factors[2], 12);  // 3 / 16 * 64
  EXPECT_EQ(control.loss_factors[3], 0) << "there is no fourth term";
  end({16, 12, 8});
  EXPECT_EQ(control.term_losses[0], 2);
  EXPECT_EQ(control.term_losses[1], 3);
  EXPECT_EQ(control.term_losses[2], 0.5);
  EXPECT_EQ(control.loss, 5);  // 2 + 0.5 * 3 + 3 * 0.5
  EXPECT_EQ(control.apply, 1);
}

TEST_F(Terms, AreLeftOutWithoutTargets) {
  control = {.targets = {0, 4}, .weights = {1, 0.5}};
  ops::begin_step(cpu.stream, &control);
  EXPECT_EQ(control.loss_factors[0], 0);
  EXPECT_EQ(control.loss_factors[1], 0.125);
  end({0, 12});
  EXPECT_EQ(control.term_losses[0], 0);
  EXPECT_EQ(control.loss, 1.5);
  EXPECT_EQ(control.apply, 1);
  control = {.targets = {0, 0}, .weights = {1, 0.5}};
  ops::begin_step(cpu.stream, &control);
  end({0, 0});
  EXPECT_TRUE(std::isnan(control.loss)) << "nothing to learn from at all";
  EXPECT_EQ(control.apply, 0);
  EXPECT_THROW(end(std::vector<double>(ops::kMostLossTerms + 1)), Error);
}

TEST_F(Control, NothingHappensOnTheNullDevice) {
  NullDevice nothing;
  const Stream stream(nothing);
  auto* address = static_cast<ops::StepControl*>(nothing.allocate(sizeof control));
  const TensorView scalar{nothing.allocate(8), DType::f64, {1}};
  ops::begin_step(stream, address);
  ops::end_step(stream, {.control = address, .square_sum = scalar, .loss_sums = scalar});
  EXPECT_THROW(ops::begin_step(stream, nullptr), Error);
}

// A loss of two terms on ranks whose hashes were added up.
struct Counted : ::testing::Test {
  CpuBench cpu;
  ops::StepControl control{.targets = {8, 3}, .weights = {1, 2}, .targets_hash = 4e9};
  double sums[2] = {16, 6};

  void end(double first, double second, double hashes, int ranks = 3) {
    double counts[2] = {first, second}, square_sum = 4;
    ops::begin_step(cpu.stream, &control);
    ops::end_step(cpu.stream, {.control = &control,
                               .square_sum = {&square_sum, DType::f64, {1}},
                               .loss_sums = {sums, DType::f64, {2}},
                               .counts = {counts, DType::f64, {2}},
                               .hashes = {&hashes, DType::f64, {1}},
                               .ranks = ranks});
  }
};

TEST_F(Counted, AStepWithTheAnnouncedTargetsIsApplied) {
  end(8, 3, 12e9);
  EXPECT_EQ(control.miscounted, 0);
  EXPECT_EQ(control.apply, 1);
  EXPECT_EQ(control.counted[1], 3);
}

TEST_F(Counted, ADifferenceRefusesTheStepAndNamesTheFirstTerm) {
  end(8, 4, 12e9);
  EXPECT_EQ(control.miscounted, 2);
  EXPECT_EQ(control.apply, 0);
  EXPECT_EQ(control.gradient_factor, 0);
  end(7, 4, 12e9);
  EXPECT_EQ(control.miscounted, 1);
  end(8, 3, 12e9);
  EXPECT_EQ(control.miscounted, 0) << "a later step is judged by itself";
}

TEST_F(Counted, RanksWithOtherAnnouncementsAreNoticedByAll) {
  end(8, 3, 12e9 + 1);
  EXPECT_EQ(control.miscounted, -1);
  EXPECT_EQ(control.apply, 0);
}

TEST_F(Counted, DroppedTargetsAreNotInTheDenominator) {
  control.dropped[0] = 4;
  end(4, 3, 12e9);
  EXPECT_EQ(control.miscounted, 0);
  EXPECT_EQ(control.loss_factors[0], 0.25);
  EXPECT_EQ(control.term_losses[0], 4);
}

// `fault.nan_step` makes the announced number NaN, which must remain an error of the loss.
TEST_F(Counted, ANumberThatIsNoneIsNotCompared) {
  control.targets[0] = NAN;
  end(8, 3, 12e9);
  EXPECT_EQ(control.miscounted, 0);
  EXPECT_EQ(control.apply, 0);
}

}  // namespace
}  // namespace choir
