// Tests of reproducible mode: in whatever way the data, pipeline and ZeRO axes divide one global
// batch, the bits are those of one rank; also if the layout changes in the middle.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/support/exhaustive.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::GridLayout;
using test::LogicalState;

constexpr std::int64_t kGridMicroBatches = 8;
constexpr int kGridSteps = 3;

/// Eight layers: four stages of two pieces. Some tensors of vocabularies have several norm chunks
/// that are cut by slices.
GptConfig eight_layers(GptConfig c) {
  c.n_layer = 8;
  c.n_head = 2;
  c.n_kv_head = std::min<std::int64_t>(c.n_kv_head, 2);
  c.vocab_size = 1111;
  c.dropout = 0.2;
  return c;
}

EngineOptions grid_options(const GptConfig& model, const char* precision) {
  EngineOptions options = test::engine_options(model, precision, kGridMicroBatches, true);
  options.grad_clip = 0.05;
  return options;
}

std::vector<PipelineOptions> cuts_of(int stages) {
  if (stages == 1) return {{}};
  return {{ScheduleKind::one_f_one_b, 1},
          {ScheduleKind::gpipe, 1},
          {ScheduleKind::interleaved, 2},
          {ScheduleKind::zb_h1, 1}};
}

/// All DP x PP x ZeRO x schedule on this number of ranks; tensor and context axes are those of
/// `base`.
std::vector<GridLayout> gpt_grid(const GridLayout& base = {}) {
  std::vector<GridLayout> list;
  const int ranks = test::world_size() / (base.tensor * base.context);
  for (int stages = 1; stages <= ranks; stages *= 2)
    for (const PipelineOptions& cut : cuts_of(stages))
      for (const int stage : {0, 1, 2, 3})
        for (int group = 1; group <= ranks / stages; group *= 2) {
          if (stage == 0 && group > 1) continue;
          GridLayout layout = base;
          layout.pipeline = stages, layout.cut = cut;
          layout.zero = {.stage = stage, .group = stage == 0 ? ZeroOptions::kAll : group};
          list.push_back(layout);
        }
  return list;
}

/// Results of a run.
struct Trace {
  std::vector<double> losses, norms;
  LogicalState state;
};

void step(test::EngineRun& run, int steps, Trace& trace) {
  for (int i = 0; i < steps; ++i) {
    const StepResult result = run.step();
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.grad_norm);
  }
}

Trace train_in_grid(const EngineOptions& options, Mesh& mesh) {
  test::EngineRun run(options, mesh);
  Trace trace;
  step(run, kGridSteps, trace);
  trace.state = test::logical_state(run);
  EXPECT_ALL_RANKS(test::holds(run, trace.state)) << "copies and replicas";
  return trace;
}

void expect_same(const Trace& a, const Trace& b, const std::string& text) {
  EXPECT_ALL_RANKS(test::same_bits(a.losses, b.losses)) << text;
  EXPECT_ALL_RANKS(test::same_bits(a.norms, b.norms)) << text;
  const std::string different = test::first_difference(a.state, b.state);
  EXPECT_ALL_RANKS(different.empty()) << text << ": " << different;
}

constexpr const char* kGridPrecisions[] = {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"};

class ReproducibleGrid : public testing::TestWithParam<const char*> {};

TEST_P(ReproducibleGrid, SameBitsAsOnOneRank) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  const auto precision = std::ranges::find(kGridPrecisions, std::string_view(GetParam()));
  auto pass = static_cast<std::size_t>(2 * (precision - std::begin(kGridPrecisions)));
  for (const GptConfig& model :
       {eight_layers(test::tiny_gpt()), eight_layers(test::tiny_llama())}) {
    const EngineOptions options = grid_options(model, GetParam());
    test::SingleRank single;
    const Trace one = train_in_grid(options, *single.mesh);
    for (const double norm : one.norms)
      EXPECT_ALL_RANKS(norm > options.grad_clip) << "clipping is at work";
    for (const GridLayout& layout : test::dealt(gpt_grid(), pass++))
      expect_same(
          one, train_in_grid(test::laid_out(options, layout, kGridMicroBatches), meshes.of(layout)),
          fmt::format("tied={} {}", model.tied, layout.to_string()));
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, ReproducibleGrid, testing::ValuesIn(kGridPrecisions),
                         [](const auto& precision) {
                           std::string name = precision.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The comparison must be able to fail: without the tree the order of sums depends on the layout.
TEST(ReproducibleLayouts, WithoutTheTreeBitsDiffer) {
  if (!test::power_of_two_ranks() || test::world_size() == 1)
    GTEST_SKIP() << "needs 2, 4 ... ranks";
  test::Meshes meshes;
  EngineOptions options = grid_options(eight_layers(test::tiny_gpt()), "fp32");
  options.reproducible = false;
  test::SingleRank single;
  const Trace one = train_in_grid(options, *single.mesh);
  const Trace many = train_in_grid(test::laid_out(options, {}, kGridMicroBatches), meshes.of({}));
  EXPECT_ALL_RANKS(!test::first_difference(one.state, many.state).empty());
  EXPECT_ALL_RANKS(test::distance(one.state, many.state) < 1e-3) << "and in the last bits only";
}

// Sums over ranks of the tensor axis are added in another order than by one rank; for a given size
// of the axis the rest of the layout still changes no bit.
TEST(ReproducibleLayouts, TensorAxisOfOneSize) {
  if (!test::power_of_two_ranks() || test::world_size() < 4) GTEST_SKIP() << "needs 4, 8 ... ranks";
  test::Meshes meshes;
  std::size_t pass = 0;
  for (const char* precision : {"fp32", "bf16-mixed"})
    for (const bool sequence : {false, true}) {
      const EngineOptions options = grid_options(eight_layers(test::tiny_gpt()), precision);
      const auto in_grid = [&](const GridLayout& layout) {
        return train_in_grid(test::laid_out(options, layout, kGridMicroBatches), meshes.of(layout));
      };
      const std::vector<GridLayout> layouts = gpt_grid({.tensor = 2, .sequence = sequence});
      const Trace first = in_grid(layouts.front());
      for (const GridLayout& layout : test::dealt(layouts, pass++))
        expect_same(first, in_grid(layout), fmt::format("{} {}", precision, layout.to_string()));
    }
}

std::string shared_folder(Communicator& world, std::unique_ptr<test::TemporaryDirectory>& folder) {
  std::string path;
  if (world.rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(world, path);
  return path;
}

// Each layout continues the run of the one before it after a step, through a checkpoint.
TEST(ReproducibleLayouts, LayoutChangesInTheMiddle) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  std::unique_ptr<test::TemporaryDirectory> folder;
  const std::string path = shared_folder(meshes.of({}).world(), folder);
  std::int64_t saved = 0;
  const GptConfig tied = eight_layers(test::tiny_gpt()), untied = eight_layers(test::tiny_llama());
  const std::vector<std::pair<const char*, GptConfig>> cases{
      {"fp32", tied}, {"bf16-mixed", untied}, {"bf16-true", tied}};
  std::size_t pass = 0;
  for (const auto& [precision, model] : cases) {
    const EngineOptions options = grid_options(model, precision);
    test::SingleRank single;
    test::EngineRun straight(options, *single.mesh);
    Progress progress;
    std::unique_ptr<Checkpoint> checkpoint;
    for (const GridLayout& layout : test::dealt(gpt_grid(), pass++)) {
      Mesh& mesh = meshes.of(layout);
      test::EngineRun run(test::laid_out(options, layout, kGridMicroBatches), mesh);
      CheckpointStore store(path, mesh.world(), {.retention = {.keep_last = 1}});
      if (checkpoint) {
        store.load(*checkpoint, tensors_to_load(run.engine(), progress));
        run.engine().instance().publish();
        run.engine().resume(progress.update_state());
        run.start_at(progress.step);
      }
      Trace here, there;
      step(run, 1, here);
      step(straight, 1, there);
      here.state = test::logical_state(run);
      there.state = test::logical_state(straight);
      expect_same(there, here, fmt::format("{} {}", precision, layout.to_string()));
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
