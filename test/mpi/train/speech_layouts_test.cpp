// Tests of a FastConformer in every layout of the available ranks: micro-batches have three shapes
// and ragged rows, and there are fewer of them than slots, so that some ranks have no work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/lab/verify/verify_record.hpp"
#include "src/models/fastconformer/data.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/step_planner.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/support/exhaustive.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"

namespace choir {
namespace {

using test::GridLayout;

constexpr std::int64_t kSpeechMicroBatches = 5;  // of a step, all ranks
constexpr int kSpeechSteps = 3;

FastConformerConfig deep_conformer() {
  FastConformerConfig c = test::tiny_conformer();
  c.n_layer = 8;  // four stages of two pieces
  c.dropout = 0.2, c.stochastic_depth = 0.2;
  return c;
}

EngineOptions speech_options_of(const char* precision, bool reproducible) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 1, reproducible);
  options.model = deep_conformer();
  options.grad_clip = 0.05;
  return options;
}

/// Number of micro-batches on this many data ranks: whole turns, and a power of two in reproducible
/// mode.
EngineOptions laid_out_in_turns(const EngineOptions& options, const GridLayout& grid, int data) {
  std::int64_t places = data;
  while (places < kSpeechMicroBatches) places += options.reproducible ? places : data;
  EngineOptions laid = test::laid_out(options, grid, places);
  laid.micro_batches = places / data;
  return laid;
}

class PaddedSpeechRun {
 public:
  PaddedSpeechRun(EngineOptions options, Mesh& mesh)
      : speech_(options.seed, options.model.as<FastConformerConfig>()),
        plan_(planned(options, mesh)),
        engine_(options, device_, mesh, plan_.arena_bytes) {
    engine_.instance().initialise(options.seed);
  }

  Engine& engine() { return engine_; }
  const StepPlan& plan() const { return plan_; }
  bool had_padding() const { return had_padding_; }

  StepResult step(std::int64_t step) {
    const ByTerm targets = speech_.targets(step * kSpeechMicroBatches, kSpeechMicroBatches);
    engine_.step(
        step,
        [&](std::int64_t j) {
          const std::int64_t place = engine_.micro_batch_index(0, j);
          if (place < kSpeechMicroBatches)
            return speech_.micro_batch(step * kSpeechMicroBatches + place);
          had_padding_ = true;
          return speech_.padding();
        },
        targets, clock_);
    return engine_.finish(clock_);
  }

 private:
  StepPlan planned(EngineOptions& options, Mesh& mesh) {
    options.shapes = speech_.shapes();
    StepPlan plan =
        plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(), false, &device_);
    options.arena_requests = plan.arena_requests;
    return plan;
  }

  CpuDevice device_;
  SyntheticUtterances speech_;
  StepPlan plan_;
  Engine engine_;
  PhaseClock clock_;
  bool had_padding_ = false;
};

RunRecord on_one_rank(const EngineOptions& options) {
  test::SingleRank single;
  PaddedSpeechRun run(laid_out_in_turns(options, {}, 1), *single.mesh);
  RunRecord record;
  for (int step = 0; step < kSpeechSteps; ++step) {
    const StepResult result = run.step(step);
    record.losses.push_back(result.loss);
    record.norms.push_back(result.grad_norm);
    EXPECT_ALL_RANKS(result.grad_norm > options.grad_clip) << "clipping is at work";
  }
  record.take(run.engine());
  return record;
}

/// All DP x PP x ZeRO x schedule (and tensor axes of `tensor` ranks) on the available ranks.
std::vector<GridLayout> speech_grid(int tensor = 1) {
  std::vector<GridLayout> list;
  const int ranks = test::world_size() / tensor;
  for (int stages = 1; stages <= ranks; stages *= 2)
    for (const PipelineOptions& cut :
         stages == 1 ? std::vector<PipelineOptions>{{}}
                     : std::vector<PipelineOptions>{{ScheduleKind::one_f_one_b, 1},
                                                    {ScheduleKind::gpipe, 1},
                                                    {ScheduleKind::interleaved, 2},
                                                    {ScheduleKind::zb_h1, 1}})
      for (const int zero : {0, 1, 2, 3}) {
        if (zero > 0 && ranks == stages) continue;
        GridLayout layout{.pipeline = stages, .tensor = tensor, .sequence = tensor > 1};
        layout.cut = cut;
        layout.zero = {.stage = zero, .group = zero == 2 && ranks / stages > 2 ? 2 : 0};
        list.push_back(layout);
      }
  return list;
}

double worst(const RunDistance& distance) {
  double most = 0;
  for (const auto* list : {&distance.losses, &distance.norms, &distance.tensors})
    for (const double d : *list) most = std::max(most, d);
  return most;
}

/// The largest distance to the record; every element must have one owner, and memory must be as
/// planned.
double distance_in(const EngineOptions& options, const GridLayout& layout, Mesh& mesh,
                   const RunRecord& record, bool* padded = nullptr) {
  const std::string text = layout.to_string();
  PaddedSpeechRun run(laid_out_in_turns(options, layout, layout.data()), mesh);
  RunDistance distance(record);
  for (int step = 0; step < kSpeechSteps; ++step)
    distance.add_step(record, static_cast<std::size_t>(step), run.step(step));
  distance.add_tensors(record, held_tensors(run.engine()), owned_tensors(run.engine()));
  distance.combine(mesh.world());
  EXPECT_ALL_RANKS(distance.badly_tiled(record).empty()) << text;
  const std::size_t peak = run.engine().instance().arena().peak();
  // In a pipeline the plan is exact for any shapes; elsewhere it is an upper bound, because not
  // every rank has the largest shape.
  EXPECT_ALL_RANKS(layout.pipeline > 1 ? peak == run.plan().arena_bytes
                                       : peak <= run.plan().arena_bytes)
      << text << ": " << peak << " of " << run.plan().arena_bytes;
  if (padded) *padded = *padded || !test::on_all_ranks(!run.had_padding());
  return worst(distance);
}

TEST(SpeechLayouts, TrainAsOneRankDoes) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  const EngineOptions options = speech_options_of("fp64", false);
  const RunRecord record = on_one_rank(options);
  bool padded = false;
  for (int tensor = 1; tensor <= std::min(4, test::world_size()); tensor *= 2)
    for (const GridLayout& layout : speech_grid(tensor)) {
      const double distance = distance_in(options, layout, meshes.of(layout), record, &padded);
      EXPECT_ALL_RANKS(distance <= 1e-12) << layout.to_string() << ": " << distance;
    }
  EXPECT_EQ(padded, test::world_size() > 1) << "some rank ran out of micro-batches";
}

// A distance of 0 means that the numbers are equal, in every bit except the sign of 0.
TEST(SpeechLayouts, ReproducibleBitByBit) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  test::Meshes meshes;
  std::size_t pass = 0;
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    const EngineOptions options = speech_options_of(precision, true);
    const RunRecord record = on_one_rank(options);
    for (const GridLayout& layout : test::dealt(speech_grid(), pass++, 2)) {
      const double distance = distance_in(options, layout, meshes.of(layout), record);
      EXPECT_ALL_RANKS(distance == 0) << precision << " " << layout.to_string() << ": " << distance;
    }
  }
}

// The comparison must be able to fail: without the tree the order of sums depends on the layout.
TEST(SpeechLayouts, WithoutTheTreeBitsDiffer) {
  if (!test::power_of_two_ranks() || test::world_size() == 1)
    GTEST_SKIP() << "needs 2, 4 ... ranks";
  test::Meshes meshes;
  const EngineOptions options = speech_options_of("fp32", false);
  const RunRecord record = on_one_rank(options);
  const double distance = distance_in(options, {}, meshes.of({}), record);
  EXPECT_ALL_RANKS(distance > 0);
  EXPECT_ALL_RANKS(distance < 1e-2) << "and in the last bits only: " << distance;
}

}  // namespace
}  // namespace choir
