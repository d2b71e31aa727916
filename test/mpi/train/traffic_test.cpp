// Tests that null communicators count the same traffic in a planned step as real ones in a real
// step.
#include <gtest/gtest.h>

#include "src/run/layout_report.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

/// Every tensor size that divides the ranks; the others are data-parallel.
std::vector<Layout> traffic_layouts() {
  std::vector<Layout> list;
  for (const int t : {1, 2, 4})
    if (test::world_size() % t == 0) list.push_back(Layout(t, 1, test::world_size() / t, 1));
  return list;
}

void expect_as_planned(const EngineOptions& options, const Layout& layout, Transport transport,
                       const std::string& what = "") {
  const auto mesh = Mesh::over_world(layout, transport);
  test::EngineRun run(options, *mesh);
  const Sharding& sharding = run.engine().instance().storage().sharding();
  run.step();  // the first step has no more traffic than others
  reset_traffic(*mesh, sharding);
  run.step();
  const StepTraffic real = traffic_of(*mesh, sharding);
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
  EXPECT_ALL_RANKS(same) << difference << layout.to_string() << " " << what;
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}) {
    const int ranks = axis == Axis::data ? sharding.data().size() : layout.size(axis);
    EXPECT_ALL_RANKS((real[static_cast<std::size_t>(axis)].bytes > 0) == (ranks > 1))
        << short_name(axis) << " of " << layout.to_string() << " " << what;
  }
}

TEST(Traffic, IsAsPlanned) {
  for (const Layout& layout : traffic_layouts())
    for (const GptConfig& model : {test::tiny_gpt(), test::tiny_llama()})
      for (const bool reproducible : {false, true}) {
        if (reproducible && test::world_size() == 3) continue;  // its tree needs powers of two
        for (const Transport transport : {Transport::automatic, Transport::mpi}) {
          EngineOptions options = test::engine_options(model, "fp32", 2, reproducible);
          expect_as_planned(options, layout, transport);
          if (layout.size(Axis::tensor) == 1) continue;
          options.sequence = true;
          expect_as_planned(options, layout, transport);
        }
      }
}

// The groups of hybrid sharding are included; their traffic counts for the data axis.
TEST(Traffic, IsAsPlannedAtEveryZeroStage) {
  for (const int stage : {1, 2, 3})
    for (int group = 1; group <= test::world_size(); ++group) {
      if (test::world_size() % group != 0) continue;
      EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 3);
      options.zero = {.stage = stage, .group = group};
      expect_as_planned(options, Layout(1, 1, test::world_size(), 1), Transport::automatic,
                        fmt::format("stage {}, groups of {}", stage, group));
    }
}

// A tied weight is sent between the first and the last stage.
TEST(Traffic, IsAsPlannedInAPipeline) {
  for (const int stages : {2, 4}) {
    if (test::world_size() % stages != 0) continue;
    const Layout layout(1, 1, test::world_size() / stages, stages);
    for (GptConfig model : {test::tiny_gpt(), test::tiny_llama()}) {
      model.n_layer = 2 * stages;
      for (const ScheduleKind kind :
           {ScheduleKind::gpipe, ScheduleKind::interleaved, ScheduleKind::zb_h1})
        for (const int zero : {0, 1, 3}) {
          EngineOptions options = test::engine_options(model, "fp32", 3);
          options.pipeline = {.schedule = kind,
                              .virtual_stages = kind == ScheduleKind::interleaved ? 2 : 1};
          options.zero.stage = zero;
          expect_as_planned(options, layout, Transport::automatic,
                            fmt::format("{} zero {}", name_of(kind), zero));
        }
    }
  }
}

// Gradients are sent over the replicas: the ranks of the data and the context axis together.
TEST(Traffic, IsAsPlannedWithAContextAxis) {
  for (const int contexts : {2, 4}) {
    if (test::world_size() % contexts != 0) continue;
    for (const int zero : {0, 1, 2, 3}) {
      EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
      options.zero.stage = zero;
      const Layout layout(1, contexts, test::world_size() / contexts, 1);
      expect_as_planned(options, layout, Transport::automatic, fmt::format("zero {}", zero));
      if (zero == 0 || layout.size(Axis::data) == 1) continue;
      options.zero.group = 1;
      expect_as_planned(options, layout, Transport::automatic,
                        fmt::format("zero {}, a copy for each data rank", zero));
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
