// A loss of a unit in the middle of a model on several ranks: the gradients of one rank, wherever
// the unit is, and denominators without damaged rows.
#include <gtest/gtest.h>

#include "test/support/mpi_test.hpp"
#include "test/support/toy_run.hpp"

namespace choir::test {
namespace {

TEST(UnitLosses, StagesFindTheLossOfAnEarlierStage) {
  if (world_size() != 2 && world_size() != 4) GTEST_SKIP() << "for two stages";
  const int tensor = world_size() / 2;
  for (const Recompute recompute : {Recompute::none, Recompute::full})
    for (const bool sequence : {false, true}) {
      if (sequence && tensor == 1) continue;
      toy::ToyConfig model = small_toy();
      model.recompute = recompute;
      const auto mesh = Mesh::over_world(Layout(tensor, 1, 1, 2), Transport::automatic);
      const auto single = Mesh::planned(Layout(), 0, 1);
      const ToyRun::Options options{.micro_batches = 4, .sequence = sequence};
      ToyRun alone(model, *single, {.micro_batches = 4}), run(model, *mesh, options);
      const StepResult a = alone.step(), b = run.step();
      for (const std::size_t term : {0u, 1u})
        EXPECT_ALL_RANKS(std::abs(a.terms[term] - b.terms[term]) <= 1e-12);
      EXPECT_ALL_RANKS(b.updated && b.targets == a.targets);
      EXPECT_ALL_RANKS(std::abs(a.grad_norm - b.grad_norm) <= 1e-12);
      if (tensor == 1) {
        EXPECT_ALL_RANKS(largest_difference(run.gradients(), alone.gradients()) <= 1e-12);
      }
    }
}

TEST(UnitLosses, DamagedRowsOfAllRanksAreNotInTheDenominator) {
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  const std::int64_t all = 2 * world_size();
  const ToyRun::Options options{.micro_batches = all, .damages = true};
  ToyRun run(small_toy(), *mesh, options);
  const StepResult result = run.step();
  EXPECT_ALL_RANKS(result.updated && result.targets[0] == run.targets()[0] / 2);
  const auto single = Mesh::planned(Layout(), 0, 1);
  ToyRun alone(small_toy(), *single, options);
  const StepResult expected = alone.step();
  EXPECT_ALL_RANKS(std::abs(result.loss - expected.loss) <= 1e-12);
  EXPECT_ALL_RANKS(largest_difference(run.gradients(), alone.gradients()) <= 1e-12);
}

TEST(UnitLosses, AllRanksRefuseAWrongNumber) {
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  ToyRun run(small_toy(), *mesh, {.micro_batches = world_size()});
  std::string refusal;
  try {
    run.step(run.targets().first() + (world_size() - 1 == mesh->rank() ? 1 : 0));
  } catch (const NumericError& error) {
    refusal = error.what();
  }
  EXPECT_ALL_RANKS(!refusal.empty());
}

}  // namespace
}  // namespace choir::test
