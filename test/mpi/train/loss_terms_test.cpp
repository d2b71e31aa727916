// Tests of a loss of several terms on several ranks, which have different numbers of targets for
// each.
#include <gtest/gtest.h>

#include "test/support/mpi_test.hpp"
#include "test/support/two_terms.hpp"

namespace choir::test {
namespace {

std::int64_t micro_batches() {
  return 2 * world_size();
}

TEST(LossTerms, DataRanksFindTheGradientsOfTheCombinedLoss) {
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  TwoTermsRun run({}, *mesh, micro_batches());
  const Named before = run.masters();
  const CombinedLoss expected({}, before, micro_batches());
  const StepResult result = run.step(run.targets());
  EXPECT_ALL_RANKS(std::abs(result.loss - expected.loss) <= 1e-12);
  EXPECT_ALL_RANKS(largest_distance(expected.gradients, run.gradients()) <= 1e-12);

  // If each rank divides by its own targets, the mean over ranks is a mean of means.
  TwoTermsRun wrong({}, *mesh, micro_batches());
  ByTerm own = wrong.own_targets();
  for (double& targets : own) targets *= world_size();
  bool refused = false;
  try {
    wrong.step(own);
  } catch (const NumericError&) {
    refused = true;
  }
  EXPECT_ALL_RANKS(refused == (world_size() > 1));
  const double far = largest_distance(expected.gradients, wrong.gradients());
  EXPECT_ALL_RANKS(world_size() == 1 ? far <= 1e-12 : far > 1e-3);
}

TEST(LossTerms, ATermThatNoRankHasIsLeftOut) {
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  const TwoTerms silent{.sounds = false};
  TwoTermsRun run(silent, *mesh, micro_batches());
  const CombinedLoss expected(silent, run.masters(), micro_batches());
  const StepResult result = run.step(run.targets());
  EXPECT_ALL_RANKS(result.updated && std::abs(result.loss - expected.loss) <= 1e-12);
  EXPECT_ALL_RANKS(largest_distance(expected.gradients, run.gradients()) <= 1e-12);
}

// The losses are on the last stage, and every stage divides by the same numbers.
TEST(LossTerms, StagesOfAPipelineFindThem) {
  if (world_size() != 2) GTEST_SKIP() << "for two stages";
  const auto mesh = Mesh::over_world(Layout(1, 1, 1, 2), Transport::automatic);
  const auto single = Mesh::planned(Layout(), 0, 1);
  TwoTermsRun alone({}, *single, 4), run({}, *mesh, 4);
  const CombinedLoss expected({}, alone.masters(), 4);
  const StepResult result = run.step(run.targets());
  EXPECT_ALL_RANKS(std::abs(result.loss - expected.loss) <= 1e-12);
  EXPECT_ALL_RANKS(largest_distance(run.gradients(), expected.gradients) <= 1e-12);
}

}  // namespace
}  // namespace choir::test
