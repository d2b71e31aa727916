// What the null communicators count in a planned step is what the real ones count in a real step.
#include <gtest/gtest.h>

#include "choir/train/layout_report.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

/// Every tensor size that divides the ranks; the others are data-parallel.
std::vector<Layout> layouts() {
  std::vector<Layout> list;
  for (const int t : {1, 2, 4})
    if (test::world_size() % t == 0) list.push_back(Layout(t, 1, test::world_size() / t, 1));
  return list;
}

void expect_as_planned(const EngineOptions& options, const Layout& layout, Transport transport) {
  const auto mesh = Mesh::over_world(layout, transport);
  test::EngineRun run(options, *mesh);
  run.step();  // the first step does nothing more than others
  reset_traffic(*mesh);
  run.step();
  const StepTraffic real = traffic_of(*mesh);
  bool same = true;
  std::string difference;
  for (std::size_t a = 0; a < kAxes; ++a) {
    const CommTraffic& plan = run.plan().traffic[a];
    if (real[a].calls == plan.calls && real[a].bytes == plan.bytes) continue;
    same = false;
    difference += fmt::format("{}: {} calls of {} bytes planned, {} of {} counted; ",
                              short_name(static_cast<Axis>(a)), plan.calls, plan.bytes,
                              real[a].calls, real[a].bytes);
  }
  EXPECT_ALL_RANKS(same) << difference << layout.to_string();
  for (const Axis axis : {Axis::tensor, Axis::data})
    EXPECT_ALL_RANKS((real[static_cast<std::size_t>(axis)].bytes > 0) == (layout.size(axis) > 1));
}

TEST(Traffic, IsAsPlanned) {
  for (const Layout& layout : layouts())
    for (const GptConfig& model : {test::tiny_gpt(), test::tiny_llama()})
      for (const bool reproducible : {false, true}) {
        if (reproducible && test::world_size() == 3) continue;  // its tree wants powers of two
        for (const Transport transport : {Transport::automatic, Transport::mpi}) {
          EngineOptions options = test::engine_options(model, "fp32", 2, reproducible);
          expect_as_planned(options, layout, transport);
          if (layout.size(Axis::tensor) == 1) continue;
          options.sequence = true;
          expect_as_planned(options, layout, transport);
        }
      }
}

TEST(Traffic, ReportKnowsTheNodesOfAllRanks) {
  const Layout layout(1, 1, test::world_size(), 1);
  const auto mesh = Mesh::over_world(layout, Transport::automatic, 2);
  StepTraffic traffic;
  traffic[static_cast<std::size_t>(Axis::data)].bytes = 3;
  const LayoutFacts facts = layout_facts(*mesh, traffic);
  EXPECT_ALL_RANKS(facts.node_of_rank == nodes_of_ranks(test::world_size(), 2));
  EXPECT_ALL_RANKS(facts.rank == test::world_rank());
  EXPECT_ALL_RANKS(facts.transport[2] == mesh->along(Axis::data).transport());
  EXPECT_ALL_RANKS(facts.traffic[2].bytes == 3);
}

}  // namespace
}  // namespace choir
