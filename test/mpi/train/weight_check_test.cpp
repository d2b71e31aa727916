// Tests that a flipped bit of a weight on one rank is detected: the rank and the parameter are
// named on all ranks.
#include "src/train/loop/weight_check.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

std::string complaint(Engine& engine) {
  try {
    check_weights(engine, 40);
  } catch (const NumericError& error) {
    return error.what();
  }
  return "";
}

/// Flips a bit in the middle of the last parameter that this rank holds in part.
std::string turn_a_bit(Engine& engine) {
  std::string name;
  TensorView memory;
  for (const Parameter* p : engine.instance().parameters().all())
    if (const TensorView view = engine.instance().storage().compared(*p).first; view.count() > 0)
      name = p->name, memory = view;
  static_cast<unsigned char*>(memory.data)[memory.bytes() / 2] ^= 0x10;
  return name;
}

void turned_bit_is_found(const Layout& layout, int stage, int culprit) {
  const auto mesh = Mesh::over_world(layout, Transport::automatic);
  EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 2);
  options.zero.stage = stage;
  test::EngineRun run(options, *mesh);
  run.losses(2);
  Engine& engine = run.engine();
  const std::string before = complaint(engine);
  EXPECT_ALL_RANKS(before.empty()) << before;
  std::string name;
  if (mesh->rank() == culprit) name = turn_a_bit(engine);
  const std::string text = complaint(engine);
  EXPECT_ALL_RANKS(text.find("step 40: weights that should be the same bits differ") != text.npos)
      << text;
  EXPECT_ALL_RANKS(text.find(fmt::format("rank {} on ", culprit)) != text.npos) << text;
  EXPECT_ALL_RANKS(name.empty() || text.find("first in " + name) != text.npos)
      << text << " lacks " << name;
  const bool alone = mesh->replica_ranks().size() > 2;
  const int other = layout.replicas(culprit).front() == culprit ? layout.replicas(culprit).back()
                                                                : layout.replicas(culprit).front();
  const bool other_named = text.find(fmt::format("rank {} on ", other)) != text.npos;
  EXPECT_ALL_RANKS(other_named == !alone) << text;
}

TEST(WeightCheck, FindsTheRankOfATurnedBit) {
  const int ranks = test::world_size();
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to compare with";
  turned_bit_is_found(Layout(1, 1, ranks, 1), 0, ranks - 1);
}

TEST(WeightCheck, ZeroKeepsWholeValuesToCompare) {
  const int ranks = test::world_size();
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to compare with";
  turned_bit_is_found(Layout(1, 1, ranks, 1), 1, 0);
}

TEST(WeightCheck, InsideAGroupOfReplicas) {
  const int ranks = test::world_size();
  if (ranks != 4) GTEST_SKIP() << "for 4 ranks";
  turned_bit_is_found(Layout(2, 1, 2, 1), 0, 3);
}

// Each pair of ranks has a copy of the weights between them: two copies have no majority.
TEST(WeightCheck, ZeroComparesGroupsThatHoldAllOfThem) {
  if (test::world_size() != 4) GTEST_SKIP() << "for 4 ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, 4, 1), Transport::automatic);
  EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 2);
  options.zero = {.stage = 3, .group = 2};
  test::EngineRun run(options, *mesh);
  run.losses(2);
  EXPECT_ALL_RANKS(complaint(run.engine()).empty());
  if (mesh->rank() == 3) turn_a_bit(run.engine());
  const std::string text = complaint(run.engine());
  EXPECT_ALL_RANKS(text.find("among ranks 0, 1, 2, 3 there is no majority") != text.npos) << text;
}

// The same check, called by the thread that saves.
TEST(WeightCheck, NothingDriftedIsSavedBesideTraining) {
  const int ranks = test::world_size();
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to compare with";
  for (const int stage : {0, 1}) {
    const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
    EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
    options.zero.stage = stage;
    test::EngineRun run(options, *mesh);
    run.losses(2);
    Communicator& world = mesh->world();
    std::unique_ptr<test::TemporaryDirectory> folder;
    if (mesh->rank() == 0) folder = std::make_unique<test::TemporaryDirectory>();
    std::string path = folder ? folder->path() : "";
    share_text(world, path);
    {
      Progress progress;
      const auto tensors = tensors_to_save(run.engine(), progress);
      BackgroundSaver saver(path, world, run.engine().instance().device(),
                            Snapshot::bytes_of(tensors), {});
      saver.start({.step = 2, .json = "{}"}, tensors, weight_check_of_save(run.engine()));
      const std::string good = saver.await_copied();
      EXPECT_ALL_RANKS(good.empty()) << good;
      EXPECT_ALL_RANKS(saver.wait().saved);
      if (mesh->rank() == ranks - 1) turn_a_bit(run.engine());
      saver.start({.step = 3, .json = "{}"}, tensors, weight_check_of_save(run.engine()));
      const std::string text = saver.await_copied();
      EXPECT_ALL_RANKS(text.find("weights that should be the same bits differ") == 0) << text;
      const SaveResult result = saver.wait();
      EXPECT_ALL_RANKS(!result.saved && result.reason == text) << result.reason;
      const std::vector<std::int64_t> steps = CheckpointStore(path, world).list();
      EXPECT_ALL_RANKS(steps == std::vector<std::int64_t>{2});
    }
    world.barrier();
  }
}

}  // namespace
}  // namespace choir
