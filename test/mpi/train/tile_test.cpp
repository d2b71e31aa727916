// Tests of the feed-forward layer in tiles on many ranks: in any layout and ZeRO stage training is
// that of one rank with the whole layer; a checkpoint is independent of tiles.
#include <gtest/gtest.h>

#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::Curve;
using test::kMicroBatches;

constexpr int kTileSteps = 4;

GptConfig tiled_model(bool llama) {
  GptConfig c = llama ? test::tiny_llama() : test::tiny_gpt();
  c.block_size = 7;  // rows do not divide evenly
  c.n_layer = 3;
  c.dropout = 0.2;
  return c;
}

Curve train_tiled(EngineOptions options, Mesh& mesh) {
  options.micro_batches = kMicroBatches / mesh.along(Axis::data).size();
  test::EngineRun run(options, mesh);
  Curve curve;
  test::take_steps(run, kTileSteps, curve);
  // Every stage of a pipeline has its own state.
  if (mesh.layout().size(Axis::pipeline) == 1) curve.state = run.state();
  require_equal_parameters(run.engine(), "parameters after training");
  EXPECT_ALL_RANKS(run.engine().instance().arena().peak() == run.plan().arena_bytes);
  return curve;
}

void expect_tiled_equal(const Curve& one, const Curve& many, const std::string& what) {
  EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= 1e-12) << what;
  EXPECT_ALL_RANKS(test::distance(one.norms, many.norms) <= 1e-12) << what;
  if (many.state.empty()) return;
  EXPECT_ALL_RANKS(test::distance(one.state, many.state) <= 1e-12)
      << what << ": state " << test::distance(one.state, many.state);
}

TEST(Tile, TrainsAsOneRankWithTheWholeLayer) {
  const int n = test::world_size();
  if (n == 3) GTEST_SKIP() << "heads do not divide";
  test::Deal deal;
  for (const bool llama : {false, true}) {
    EngineOptions options = test::engine_options(tiled_model(llama), "fp64", kMicroBatches);
    options.grad_clip = 0.5;
    test::SingleRank single;
    const Curve one = train_tiled(options, *single.mesh);
    options.model.as<GptConfig>().tile = 4;
    for (const int t : {1, 2, 4})
      for (const int p : {1, 2}) {
        if (n % (t * p) != 0) continue;
        const auto mesh = Mesh::over_world(Layout(t, 1, n / (t * p), p), Transport::automatic);
        for (const ZeroOptions& zero :
             {ZeroOptions{.stage = 0}, ZeroOptions{.stage = 1}, ZeroOptions{.stage = 2},
              ZeroOptions{.stage = 3}, ZeroOptions{.stage = 3, .prefetch = 3}})
          for (const bool sequence : {false, true})
            for (const Recompute recompute : {Recompute::none, Recompute::full}) {
              if ((sequence && t == 1) || !deal.takes()) continue;
              options.zero = zero;
              options.sequence = sequence;
              options.model.as<GptConfig>().recompute = recompute;
              expect_tiled_equal(
                  one, train_tiled(options, *mesh),
                  fmt::format("{} stage {} prefetch {}{}{}", mesh->layout().to_string(), zero.stage,
                              zero.prefetch, sequence ? " sequence" : "",
                              recompute == Recompute::full ? " full" : ""));
            }
      }
  }
}

TEST(Tile, SameBitsAtEveryStageInReproducibleMode) {
  const int n = test::world_size();
  if (n == 3) GTEST_SKIP() << "its tree wants powers of two";
  const auto mesh = Mesh::over_world(Layout(1, 1, n, 1), Transport::automatic);
  EngineOptions options = test::engine_options(tiled_model(true), "bf16-mixed", 1, true);
  options.model.as<GptConfig>().tile = 2;
  const Curve whole = train_tiled(options, *mesh);
  for (const int stage : {1, 2, 3}) {
    options.zero.stage = stage;
    const Curve sliced = train_tiled(options, *mesh);
    EXPECT_ALL_RANKS(test::same_bits(whole.losses, sliced.losses)) << stage;
    EXPECT_ALL_RANKS(test::same_bits(whole.state, sliced.state)) << stage;
  }
}

/// Saves a run with `from` tiles and loads it into one with `to` tiles and another ZeRO stage.
void carries_over(Mesh& mesh, const std::string& path, const char* precision, int from, int to) {
  EngineOptions options = test::engine_options(tiled_model(true), precision, 1);
  options.model.as<GptConfig>().tile = from;
  options.zero.stage = from == 1 ? 1 : 3;
  test::EngineRun run(options, mesh);
  run.losses(3);
  Progress progress{.step = 3};
  CheckpointStore store(path, mesh.world());
  EXPECT_ALL_RANKS(
      store.save({.step = 3, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
  options.model.as<GptConfig>().tile = to;
  options.zero.stage = to == 1 ? 0 : 3;
  options.seed = 99;
  test::EngineRun other(options, mesh);
  EXPECT_ALL_RANKS(!test::same_bits(run.state(), other.state())) << "before loading they differ";
  Progress restored;
  const auto found = store.find_newest_valid();
  ASSERT_ALL_RANKS(found.has_value());
  store.load(*found, tensors_to_load(other.engine(), restored));
  EXPECT_ALL_RANKS(test::same_bits(run.state(), other.state())) << from << " to " << to;
}

TEST(Tile, ACheckpointKnowsNoTiles) {
  const int n = test::world_size();
  for (const int t : {1, 2}) {
    if (n % t != 0) continue;
    const auto mesh = Mesh::over_world(Layout(t, 1, n / t, 1), Transport::automatic);
    for (const char* precision : {"fp64", "bf16-mixed"})
      for (const auto& [from, to] : {std::pair{1, 4}, {4, 1}, {2, 8}}) {
        std::unique_ptr<test::TemporaryDirectory> folder;
        std::string path;
        if (mesh->rank() == 0) {
          folder = std::make_unique<test::TemporaryDirectory>();
          path = folder->path() + "/checkpoints";
        }
        share_text(mesh->world(), path);
        carries_over(*mesh, path, precision, from, to);
        mesh->world().barrier();
      }
  }
}

}  // namespace
}  // namespace choir
