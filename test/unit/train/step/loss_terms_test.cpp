// A loss of several terms on one rank: each is divided by its own targets of the whole step, and a
// term without targets is left out.
#include "choir/models/model.hpp"

#include <gtest/gtest.h>

#include "test/support/count_allocations.hpp"
#include "test/support/separate_device.hpp"
#include "test/support/two_terms.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

constexpr std::int64_t kMicroBatches = 4;

TEST(LossTerms, GradientsAreThoseOfTheCombinedLoss) {
  SingleRank single;
  TwoTermsRun run({}, *single.mesh, kMicroBatches);
  const CombinedLoss expected({}, run.masters(), kMicroBatches);
  const StepResult result = run.step(run.targets());
  EXPECT_TRUE(result.updated);
  EXPECT_NEAR(result.loss, expected.loss, 1e-12);
  EXPECT_LE(largest_distance(expected.gradients, run.gradients()), 1e-12);
  EXPECT_NE(result.targets[0], result.targets[1]);
  EXPECT_NEAR(result.loss, result.terms[0] + 0.3 * result.terms[1], 1e-12);
}

// A division of both sums by the number of all targets gives another result, and the model, which
// counts the targets of each term, detects it.
TEST(LossTerms, OneCountForAllIsSeen) {
  SingleRank single;
  TwoTermsRun run({}, *single.mesh, kMicroBatches);
  const Named before = run.masters();
  const CombinedLoss expected({}, before, kMicroBatches);
  const ByTerm targets = run.targets();
  EXPECT_THROW(run.step(ByTerm(2, targets[0] + targets[1])), NumericError);
  EXPECT_GT(largest_distance(expected.gradients, run.gradients()), 1e-3);
  EXPECT_EQ(run.masters(), before) << "a wrong denominator updates nothing";
}

TEST(LossTerms, ATermWithoutTargetsIsLeftOut) {
  SingleRank single;
  const TwoTerms silent{.sounds = false};
  TwoTermsRun run(silent, *single.mesh, kMicroBatches);
  const Named before = run.masters();
  const CombinedLoss expected(silent, before, kMicroBatches);
  const StepResult result = run.step(run.targets());
  EXPECT_TRUE(result.updated);
  EXPECT_NEAR(result.loss, expected.loss, 1e-12);
  EXPECT_EQ(result.loss, result.terms[0]);
  EXPECT_EQ(result.targets[1], 0);
  const Named gradients = run.gradients();
  EXPECT_LE(largest_distance(expected.gradients, gradients), 1e-12);
  EXPECT_EQ(gradients.at("sound.weight"), std::vector<double>(before.at("sound.weight").size()));
}

TEST(LossTerms, WithoutAnyTargetThereIsNoStep) {
  SingleRank single;
  TwoTermsRun run({}, *single.mesh, kMicroBatches);
  EXPECT_THROW(run.step(ByTerm(2, 0)), NumericError) << "the model has used targets";
  EXPECT_THROW(run.step(ByTerm(1)), Error) << "of the other term nothing was said";
}

TEST(LossTerms, TheSameWhereBatchesAreCopiedToTheDevice) {
  SingleRank single;
  TwoTermsRun here({}, *single.mesh, kMicroBatches);
  TwoTermsRun there({}, *single.mesh, kMicroBatches, std::make_unique<SeparateDevice>());
  const StepResult a = here.step(here.targets()), b = there.step(there.targets());
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.terms, b.terms);
  EXPECT_EQ(here.gradients(), there.gradients());
}

TEST(LossTerms, EvaluationFindsTheLossOfTheStep) {
  SingleRank single;
  TwoTermsRun run({}, *single.mesh, kMicroBatches);
  ByTerm sums;
  for (std::int64_t i = 0; i < kMicroBatches; ++i)
    sums += run.engine().instance().loss_sums(run.batches().micro_batch(i));
  EXPECT_THROW(run.engine().instance().loss_sum(run.batches().micro_batch(0)), Error);
  const Validation found = validation_of(kTwoTerms, sums, run.targets());
  const StepResult result = run.step(run.targets());
  EXPECT_NEAR(found.loss, result.loss, 1e-12);
  ASSERT_EQ(found.metrics.size(), 2u);
  EXPECT_EQ(found.metrics[1].first, "sound_loss");
  EXPECT_NEAR(found.metrics[1].second, result.terms[1], 1e-12);
}

TEST(LossTerms, AllocateNothingInTheStepLoop) {
  SingleRank single;
  TwoTermsRun run({}, *single.mesh, kMicroBatches);
  const ByTerm targets = run.targets();
  for (int i = 0; i < 3; ++i) run.step(targets);
  const std::int64_t before = allocations();
  run.step(targets);
  EXPECT_EQ(allocations(), before);
}

TEST(LossTerms, NamesOfThoseThatHaveTargets) {
  ByTerm means(2, 3), targets(2, 5);
  means[1] = 4;
  using List = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(means_by_name(kTwoTerms, means, targets), (List{{"text_loss", 3}, {"sound_loss", 4}}));
  EXPECT_NEAR(weighted_loss(kTwoTerms, means, targets), 4.2, 1e-15);
  targets[0] = 0;
  EXPECT_EQ(means_by_name(kTwoTerms, means, targets), (List{{"sound_loss", 4}}));
  EXPECT_NEAR(weighted_loss(kTwoTerms, means, targets), 1.2, 1e-15);
  EXPECT_EQ(means_by_name({{"loss", 1}}, 3, 5), List()) << "a loss of one term is the loss";
  EXPECT_EQ(weighted_loss({{"loss", 1}}, 3, 5), 3);
}

}  // namespace
}  // namespace choir::test
