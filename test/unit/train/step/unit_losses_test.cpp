// A unit in the middle of a model adds a loss of its own (the second layer of test/toy_family): its
// gradient, its name and denominator, recomputation, accumulation, and the loss scale.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "test/support/toy_run.hpp"

namespace choir::test {
namespace {

TEST(UnitLosses, TheGradientIsThatOfTheWeightedSum) {
  SingleRank single;
  ToyRun run(small_toy(), *single.mesh, {});
  const StepResult result = run.step();
  ASSERT_EQ(result.terms.size(), 2u);
  EXPECT_GT(result.terms[1], 0);
  EXPECT_EQ(result.targets[1], result.targets[0]) << "announced for the first term alone";
  EXPECT_NEAR(result.loss, result.terms[0] + 0.3 * result.terms[1], 1e-14);
  const ToyRun::Named exact = run.gradients();
  ToyRun moved(small_toy(), *single.mesh, {});
  ModelInstance& instance = moved.engine().instance();
  EXPECT_NEAR(moved.loss(), result.loss, 1e-13) << "evaluation has both terms";
  double largest = 0;
  for (Parameter& p : instance.parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); i += 1 + p.count() / 9) {
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double by) {
        p.master.as<double>()[i] += by;
        instance.publish();
        return moved.loss();
      };
      const double above = loss_at(kStep), below = loss_at(-2 * kStep);
      loss_at(kStep);
      const double slope = exact.at(p.name)[static_cast<std::size_t>(i)];
      EXPECT_NEAR((above - below) / (2 * kStep), slope, 1e-8) << p.name << " " << i;
      largest = std::fmax(largest, std::abs(slope));
    }
  EXPECT_GT(largest, 1e-3);
  toy::ToyConfig silent = small_toy();
  silent.size_weight = 0;
  ToyRun without(silent, *single.mesh, {});
  without.step();
  EXPECT_GT(largest_difference(without.gradients(), exact), 1e-4) << "the term matters";
}

TEST(UnitLosses, RecomputationAddsThemOnce) {
  SingleRank single;
  ToyRun plain(small_toy(), *single.mesh, {});
  toy::ToyConfig again = small_toy();
  again.recompute = Recompute::full;
  ToyRun recomputed(again, *single.mesh, {});
  const StepResult a = plain.step(), b = recomputed.step();
  EXPECT_EQ(a.terms, b.terms);
  EXPECT_EQ(plain.gradients(), recomputed.gradients());
}

TEST(UnitLosses, AccumulationDividesByTheGlobalBatch) {
  SingleRank single;
  ToyRun many(small_toy(), *single.mesh, {.micro_batches = 4, .rows = 1});
  ToyRun one(small_toy(), *single.mesh, {.micro_batches = 1, .rows = 4});
  const StepResult a = many.step(), b = one.step();
  for (const std::size_t term : {0u, 1u}) EXPECT_NEAR(a.terms[term], b.terms[term], 1e-13);
  EXPECT_LE(largest_difference(many.gradients(), one.gradients()), 1e-13);
}

// The gradients of 16 bits carry the loss scale, which the norm takes out again: a term without the
// scale would leave almost nothing of its gradient.
TEST(UnitLosses, TheLossScaleAppliesToThem) {
  SingleRank single;
  toy::ToyConfig alone = small_toy();
  alone.size_weight = 500;  // dominates the gradient
  ToyRun exact(alone, *single.mesh, {});
  ToyRun scaled(alone, *single.mesh, {.precision = "fp16-mixed"});
  const StepResult a = exact.step(), b = scaled.step();
  ASSERT_TRUE(b.updated);
  EXPECT_GT(b.loss_scale, 1);
  EXPECT_NEAR(b.grad_norm / a.grad_norm, 1, 0.02);
}

TEST(UnitLosses, AWrongNumberOfTargetsIsRefusedByName) {
  SingleRank single;
  ToyRun run(small_toy(), *single.mesh, {});
  StepTargets wrong(run.targets().first() + 1);
  wrong.by_micro_batch = {10.0, 11.0};
  try {
    run.step(wrong);
    FAIL() << "the step was done";
  } catch (const NumericError& error) {
    const std::string text = error.what();
    for (const char* part : {"step 1", "20 targets", "\"token_loss\"", "announced 21",
                             "micro-batch 1 of the step has 10 targets, not 11"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

// Rows that a reader has left out are announced, but not used.
TEST(UnitLosses, DamagedRowsAreNotInTheDenominator) {
  SingleRank single;
  ToyRun damaged(small_toy(), *single.mesh, {.damages = true});
  const StepResult result = damaged.step();
  EXPECT_TRUE(result.updated);
  EXPECT_EQ(result.targets[0], 10) << "half of 20";
  EXPECT_EQ(result.targets[1], 10);
  // The same rows, masked by the data and not announced.
  ToyRun masked(small_toy(), *single.mesh, {.damages = true});
  EXPECT_THROW(masked.step(ByTerm(10.0)), NumericError) << "dropped twice";
}

TEST(UnitLosses, ATermThatDoesNotExistIsRefused) {
  EXPECT_THROW(targets_of_terms({{"a", 1}, {"b", 1, 1}}, 3.0), Error) << "counts as itself";
  EXPECT_THROW(targets_of_terms({{"a", 1}, {"b", 1}}, 3.0), Error) << "b is not announced";
  EXPECT_EQ(targets_of_terms({{"a", 1}, {"b", 1, 0}}, 3.0), ByTerm(2, 3));
}

}  // namespace
}  // namespace choir::test
