// Moments in bf16 on several ranks: each element is rounded by bits of its own, wherever it lies,
// so in reproducible mode every layout has the bits of one rank.
#include <gtest/gtest.h>

#include "src/store/collectives.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/offload_case.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::GridLayout;
using test::LogicalState;

constexpr std::int64_t kNarrowMicroBatches = 4;
constexpr int kNarrowSteps = 3;

EngineOptions narrow_moment_options(const char* precision, const char* rule) {
  GptConfig model = test::tiny_llama();
  model.n_layer = 4;
  model.vocab_size = 131;  // slices cut its tensors, and no number of ranks divides it
  EngineOptions options = test::engine_options(model, precision, kNarrowMicroBatches, true);
  options.precision = with_narrow_moments(options.precision);
  options.optimizer.rule = &update_rule(rule);
  options.offload.second_moment = options.optimizer.rule->moments().size() > 1;
  return options;
}

/// Data-parallel ranks with every ZeRO stage, groups, and pipelines.
std::vector<GridLayout> layouts_without_tensor() {
  std::vector<GridLayout> list;
  for (const int stage : {0, 1, 2, 3}) list.push_back({.zero = {.stage = stage}, .cut = {}});
  if (test::world_size() >= 4) {
    list.push_back({.zero = {.stage = 3, .group = 2}, .cut = {}});
    list.push_back({.pipeline = 2, .zero = {.stage = 1}, .cut = {}});
    list.push_back({.pipeline = 4, .zero = {}, .cut = {ScheduleKind::zb_h1, 1}});
  }
  return list;
}

LogicalState trained_narrow(test::EngineRun& run, int steps = kNarrowSteps) {
  run.losses(steps);
  return test::logical_state(run);
}

LogicalState trained_narrow(const EngineOptions& options, Mesh& mesh) {
  test::EngineRun run(options, mesh);
  LogicalState state = trained_narrow(run);
  EXPECT_ALL_RANKS(test::holds(run, state)) << "copies and replicas";
  return state;
}

constexpr std::pair<const char*, const char*> kNarrowCases[] = {
    {"fp32", "adamw"}, {"fp32", "muon"}, {"bf16-true", "adamw"}};

TEST(MomentPrecision, SameBitsAsOnOneRank) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  for (const auto& [precision, rule] : kNarrowCases) {
    const EngineOptions options = narrow_moment_options(precision, rule);
    test::SingleRank single;
    const LogicalState one = trained_narrow(options, *single.mesh);
    for (const GridLayout& layout : layouts_without_tensor())
      for (const bool file : {false, true}) {
        if (file && layout.zero.stage != 3) continue;
        EngineOptions laid = test::laid_out(options, layout, kNarrowMicroBatches);
        if (file) laid.offload = test::offload_to_file();
        const std::string different =
            test::first_difference(one, trained_narrow(laid, meshes.of(layout)));
        EXPECT_ALL_RANKS(different.empty())
            << precision << " " << rule << " " << layout.to_string() << ": " << different;
      }
  }
}

// Sums over ranks of these axes are added in another order than by one rank; but the moments of the
// first step consist of gradients that hardly differ, so nearly all are rounded to the same
// neighbour if each element has the bits of one rank, and only a part of them otherwise.
TEST(MomentPrecision, TensorAndContextRanksDrawTheBitsOfOneRank) {
  if (!test::power_of_two_ranks() || test::world_size() < 2) GTEST_SKIP() << "needs 2, 4 ... ranks";
  test::Meshes meshes;
  for (const auto& [precision, rule] : kNarrowCases) {
    if (std::string_view(precision) != "fp32") continue;
    EngineOptions options = narrow_moment_options(precision, rule);
    options.reproducible = false;  // it has no context axis
    test::SingleRank single;
    test::EngineRun one(options, *single.mesh);
    const LogicalState wanted = trained_narrow(one, 1);
    for (const GridLayout& layout : {GridLayout{.tensor = 2, .zero = {}, .cut = {}},
                                     {.tensor = 2, .zero = {.stage = 3}, .cut = {}},
                                     {.context = 2, .zero = {.stage = 1}, .cut = {}}}) {
      test::EngineRun run(test::laid_out(options, layout, kNarrowMicroBatches), meshes.of(layout));
      const LogicalState here = trained_narrow(run, 1);
      double same = 0, count = 0;
      for (const auto& [name, values] : wanted) {
        if (!name.starts_with("optimizer/")) continue;
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (values[i] == 0) continue;
          ++count;
          same += values[i] == here.at(name)[i];
        }
      }
      EXPECT_ALL_RANKS(count > 1000 && same > 0.99 * count)
          << rule << " " << layout.to_string() << ": " << same << " of " << count;
    }
  }
}

// For a given size of the tensor axis no bit depends on the rest of the layout.
TEST(MomentPrecision, TensorAxisOfOneSize) {
  if (!test::power_of_two_ranks() || test::world_size() < 4) GTEST_SKIP() << "needs 4, 8 ... ranks";
  test::Meshes meshes;
  for (const char* rule : {"adamw", "muon"}) {
    const EngineOptions options = narrow_moment_options("fp32", rule);
    const auto in = [&](const GridLayout& layout) {
      return trained_narrow(test::laid_out(options, layout, kNarrowMicroBatches),
                            meshes.of(layout));
    };
    const LogicalState first = in({.tensor = 2, .zero = {}, .cut = {}});
    for (const GridLayout& layout : {GridLayout{.tensor = 2, .zero = {.stage = 1}, .cut = {}},
                                     {.tensor = 2, .zero = {.stage = 3}, .cut = {}},
                                     {.pipeline = 2, .tensor = 2, .zero = {}, .cut = {}}}) {
      const std::string different = test::first_difference(first, in(layout));
      EXPECT_ALL_RANKS(different.empty()) << rule << " " << layout.to_string() << ": " << different;
    }
  }
}

// Each layout continues the run of the one before it after a step, through a checkpoint.
TEST(MomentPrecision, LayoutChangesInTheMiddle) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (meshes.of({}).world().rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(meshes.of({}).world(), path);
  std::int64_t saved = 0;
  for (const char* rule : {"adamw", "muon"}) {
    const EngineOptions options = narrow_moment_options("bf16-mixed", rule);
    test::SingleRank single;
    test::EngineRun straight(options, *single.mesh);
    Progress progress;
    std::unique_ptr<Checkpoint> checkpoint;
    for (const GridLayout& layout : layouts_without_tensor()) {
      Mesh& mesh = meshes.of(layout);
      test::EngineRun run(test::laid_out(options, layout, kNarrowMicroBatches), mesh);
      CheckpointStore store(path, mesh.world(), {.retention = {.keep_last = 1}});
      if (checkpoint) {
        store.load(*checkpoint, tensors_to_load(run.engine(), progress));
        run.engine().instance().publish();
        run.engine().resume(progress.update_state());
        run.start_at(progress.step);
      }
      const LogicalState here = trained_narrow(run, 1), there = trained_narrow(straight, 1);
      const std::string different = test::first_difference(there, here);
      EXPECT_ALL_RANKS(different.empty()) << rule << " " << layout.to_string() << ": " << different;
      ++progress.step;
      progress.updates = run.engine().update_state().updates;
      ASSERT_ALL_RANKS(
          store.save({.step = ++saved, .json = "{}"}, tensors_to_save(run.engine(), progress))
              .saved);
      checkpoint = std::make_unique<Checkpoint>(*store.find_newest_valid());
    }
  }
}

}  // namespace
}  // namespace choir
