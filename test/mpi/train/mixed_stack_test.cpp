// A stack with blocks of two kinds, whose parameters have other shapes (test/toy_family), on
// several ranks: the steps of one rank.
#include <gtest/gtest.h>

#include <vector>

#include "test/support/mpi_test.hpp"
#include "test/support/toy_run.hpp"

namespace choir::test {
namespace {

toy::ToyConfig mixed() {
  toy::ToyConfig model = small_toy();
  model.n_layer = 4;
  model.gated_interval = 2;
  return model;
}

struct Division {
  Layout layout;
  int zero = 0;
  bool sequence = false;
};

std::vector<Division> divisions(int ranks) {
  if (ranks == 2) return {{Layout(2, 1, 1, 1)}, {Layout(1, 1, 1, 2)}, {Layout(1, 1, 2, 1), 3}};
  return {{Layout(2, 1, 1, 2), 0, true},
          {Layout(1, 1, 4, 1), 3},
          {Layout(2, 1, 2, 1), 3},
          {Layout(1, 1, 2, 2), 1},
          {Layout(1, 1, 1, 4)}};
}

TEST(MixedStack, EveryLayoutTrainsTheKindsAsOneRank) {
  if (world_size() != 2 && world_size() != 4) GTEST_SKIP() << "for 2 or 4 ranks";
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    toy::ToyConfig model = mixed();
    model.recompute = recompute;
    const auto single = Mesh::planned(Layout(), 0, 1);
    ToyRun alone(model, *single, {.micro_batches = 4});
    std::vector<StepResult> expected;
    for (int step = 0; step < 3; ++step) expected.push_back(alone.step());
    EXPECT_ALL_RANKS(expected.back().loss < expected.front().loss - 1e-6);
    for (const Division& division : divisions(world_size())) {
      const auto mesh = Mesh::over_world(division.layout, Transport::automatic);
      ToyRun run(model, *mesh,
                 {.micro_batches = 4, .sequence = division.sequence, .zero = division.zero});
      for (const StepResult& of_one : expected) {
        const StepResult result = run.step();
        EXPECT_ALL_RANKS(result.updated && std::abs(result.loss - of_one.loss) <= 1e-12 &&
                         std::abs(result.grad_norm - of_one.grad_norm) <= 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace choir::test
