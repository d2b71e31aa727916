// A stack with blocks of two kinds (test/toy_family): parameters, gradients, costs and the table.
#include <gtest/gtest.h>

#include <string>

#include "src/parallel/pipeline/layer_partition.hpp"
#include "test/support/toy_run.hpp"

namespace choir::test {
namespace {

toy::ToyConfig mixed() {
  toy::ToyConfig model = small_toy();
  model.n_layer = 4;
  model.gated_interval = 2;
  return model;
}

TEST(MixedStack, EachBlockHasTheParametersOfItsKind) {
  SingleRank single;
  ToyRun run(mixed(), *single.mesh, {});
  run.step();
  const ToyRun::Named gradients = run.gradients();
  const std::size_t width = 6;
  for (const auto& [layer, gated] : {std::pair{0, false}, {1, true}, {2, false}, {3, true}}) {
    const std::string name = fmt::format("layers.{}.input.weight", layer);
    ASSERT_EQ(gradients.count(name), 1u) << name;
    EXPECT_EQ(gradients.at(name).size(), (gated ? 2 * 3 : 2) * width * width) << name;
  }
}

TEST(MixedStack, TheGradientIsThatOfTheLoss) {
  SingleRank single;
  ToyRun run(mixed(), *single.mesh, {});
  run.step();
  const ToyRun::Named exact = run.gradients();
  ToyRun moved(mixed(), *single.mesh, {});
  ModelInstance& instance = moved.engine().instance();
  for (Parameter& p : instance.parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); i += 1 + p.count() / 5) {
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double by) {
        p.master.as<double>()[i] += by;
        instance.publish();
        return moved.loss();
      };
      const double above = loss_at(kStep), below = loss_at(-2 * kStep);
      loss_at(kStep);
      EXPECT_NEAR((above - below) / (2 * kStep), exact.at(p.name)[static_cast<std::size_t>(i)],
                  1e-8)
          << p.name << " " << i;
    }
}

TEST(MixedStack, TheTableListsEachKindOnce) {
  SingleRank single;
  ToyRun run(mixed(), *single.mesh, {});
  const std::string table = run.engine().instance().model().describe();
  for (const char* line : {"layers.0 ", "(and 1 alike: 2)", "layers.1 ", "(and 1 alike: 3)"})
    EXPECT_NE(table.find(line), std::string::npos) << table;
  EXPECT_EQ(table.find("layers.2"), std::string::npos) << table;
  ToyRun plain(small_toy(), *single.mesh, {});
  EXPECT_NE(plain.engine().instance().model().describe().find("(and 2 alike)"), std::string::npos);
}

// Two gated layers at the end cost as much as 4.5 of the others.
TEST(MixedStack, StagesAreBalancedByTheCostsOfTheKinds) {
  toy::ToyConfig model = mixed();
  model.n_embd = 64, model.vocab_size = 3, model.n_layer = 8, model.gated_interval = 4;
  const UnitCosts costs = family_of(model).unit_costs(model);
  ASSERT_EQ(costs.size(), 10u);
  EXPECT_EQ(costs[1], 8.0 * 64 * 64);
  EXPECT_EQ(costs[4], 18.0 * 64 * 64);
  EXPECT_EQ(costs[8], costs[4]);
  const auto last_of_first = [](const UnitCosts& of) {
    return partition_layers(of, 2, 1).front().end();
  };
  model.gated_interval = 0;
  EXPECT_EQ(last_of_first(family_of(model).unit_costs(model)), 5) << "the embedding and 4 layers";
  UnitCosts rising = costs;
  std::swap(rising[4], rising[7]);
  EXPECT_EQ(last_of_first(rising), 6) << "the embedding and 5 light layers";
}

}  // namespace
}  // namespace choir::test
