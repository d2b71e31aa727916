// Trainings with the head in chunks of rows, and attention in tiles of positions where no context
// ranks divide them, in every kind of layout: like one rank that computes both whole, and in
// reproducible mode bit for bit like one rank with the same chunks.
#include <gtest/gtest.h>

#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"

namespace choir {
namespace {

using test::GridLayout;
using test::LogicalState;

constexpr std::int64_t kHeadMicroBatches = 4;
constexpr int kHeadSteps = 2;

/// 14 rows a micro-batch; eight layers are two for each of four stages.
GptConfig model_in_chunks(std::int64_t chunk, bool tied) {
  GptConfig c = test::tiny_gpt();
  c.block_size = 7;
  c.n_layer = 8;
  c.n_head = c.n_kv_head = 4;
  c.n_embd = 32;
  c.ffn_width = 32;
  c.tied = tied;
  c.label_smoothing = 0.1, c.z_loss = 0.01, c.head_chunk = chunk;
  return c;
}

EngineOptions options_in_chunks(const GptConfig& model, bool reproducible) {
  EngineOptions options = test::engine_options(model, "fp64", kHeadMicroBatches, reproducible);
  options.grad_clip = 0.5;  // clips in the first steps
  return options;
}

struct Trained {
  std::vector<double> losses, norms;
  LogicalState state;
};

Trained train_in_chunks(const EngineOptions& options, Mesh& mesh) {
  test::EngineRun run(options, mesh);
  Trained trained;
  for (int i = 0; i < kHeadSteps; ++i) {
    const StepResult result = run.step();
    trained.losses.push_back(result.loss);
    trained.norms.push_back(result.grad_norm);
    EXPECT_EQ(result.terms.size(), 2u);
    EXPECT_NEAR(result.loss, result.terms[0] + 0.01 * result.terms[1], 1e-12);
  }
  EXPECT_ALL_RANKS(run.engine().instance().arena().peak() == run.plan().arena_bytes);
  trained.state = test::logical_state(run);
  return trained;
}

/// The same on one rank; every process computes it.
Trained train_alone(const EngineOptions& options) {
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  Trained trained;
  for (int i = 0; i < kHeadSteps; ++i) {
    const StepResult result = run.step();
    trained.losses.push_back(result.loss);
    trained.norms.push_back(result.grad_norm);
  }
  trained.state = test::logical_state(run);
  return trained;
}

std::vector<GridLayout> data_and_stages() {
  const int ranks = test::world_size();
  std::vector<GridLayout> list;
  for (const int stage : {0, 1, 2, 3}) list.push_back({.zero = {.stage = stage}});
  for (int stages = 2; stages <= ranks && ranks % stages == 0; stages *= 2) {
    for (const ScheduleKind kind :
         {ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::zb_h1})
      list.push_back({.pipeline = stages, .cut = {kind, 1}});
    list.push_back({.pipeline = stages, .cut = {ScheduleKind::interleaved, 2}});
    list.push_back({.pipeline = stages, .zero = {.stage = 3}, .cut = {ScheduleKind::gpipe, 1}});
  }
  return list;
}

std::vector<GridLayout> all_kinds() {
  const int ranks = test::world_size();
  std::vector<GridLayout> list = data_and_stages();
  for (const bool sequence : {false, true}) {
    list.push_back({.tensor = ranks, .sequence = sequence});
    if (ranks % 2 == 0) {
      list.push_back({.tensor = 2, .sequence = sequence, .zero = {.stage = 3}});
      list.push_back({.pipeline = ranks / 2, .tensor = 2, .sequence = sequence});
    }
  }
  list.push_back({.context = ranks});
  return list;
}

TEST(HeadChunk, EveryLayoutTrainsLikeOneRankWithoutChunks) {
  if (test::world_size() == 3) GTEST_SKIP() << "three ranks do not divide four micro-batches";
  test::Meshes meshes;
  for (const bool tied : {false, true}) {
    const Trained one = train_alone(options_in_chunks(model_in_chunks(0, tied), false));
    ASSERT_ALL_RANKS(one.norms.front() > 0.5) << "the first steps are clipped";
    for (const GridLayout& grid : all_kinds()) {
      // Five does not divide the rows, and three not the positions.
      GptConfig model = model_in_chunks(5, tied);
      if (grid.context == 1) model.attention_chunk = 3;
      const EngineOptions options =
          test::laid_out(options_in_chunks(model, false), grid, kHeadMicroBatches);
      const Trained many = train_in_chunks(options, meshes.of(grid));
      const std::string where = (tied ? "tied, " : "") + grid.to_string();
      EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= 1e-12) << where;
      EXPECT_ALL_RANKS(test::distance(one.norms, many.norms) <= 1e-12) << where;
      EXPECT_ALL_RANKS(test::distance(one.state, many.state) <= 1e-12)
          << where << ": " << test::distance(one.state, many.state);
    }
  }
}

TEST(HeadChunk, ReproducibleLayoutsHaveTheSameBits) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "needs powers of two";
  test::Meshes meshes;
  for (const bool tied : {false, true}) {
    GptConfig model = model_in_chunks(5, tied);
    model.attention_chunk = 3;
    const EngineOptions chunked = options_in_chunks(model, true);
    const Trained one = train_alone(chunked);
    for (const GridLayout& grid : data_and_stages()) {
      const Trained many =
          train_in_chunks(test::laid_out(chunked, grid, kHeadMicroBatches), meshes.of(grid));
      EXPECT_ALL_RANKS(one.losses == many.losses) << grid.to_string();
      EXPECT_ALL_RANKS(test::first_difference(one.state, many.state).empty())
          << grid.to_string() << ": " << test::first_difference(one.state, many.state);
    }
  }
}

}  // namespace
}  // namespace choir
