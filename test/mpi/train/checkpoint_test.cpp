// Tests that a run saved by any number of ranks continues on one rank, to the bit; and that
// validation does not depend on ranks.
#include <gtest/gtest.h>

#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::world_mesh;

TEST(TrainCheckpoint, SavedByManyLoadedByOne) {
  const auto mesh = world_mesh();
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (mesh->rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(mesh->world(), path);
  for (const char* precision : {"fp64", "bf16-mixed"}) {
    test::EngineRun run(test::engine_options(test::tiny_llama(), precision, 2), *mesh);
    run.losses(3);
    Progress progress{.step = 3,
                      .updates = 2,
                      .consumed_samples = 36,
                      .skipped_in_a_row = 1,
                      .best_val_loss = 0.1};
    CheckpointStore store(path, mesh->world());
    EXPECT_ALL_RANKS(
        store.save({.step = 3, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);

    test::SingleRank single;
    test::EngineRun alone(test::engine_options(test::tiny_llama(), precision, 2), *single.mesh);
    Progress restored;
    CheckpointStore reader(path, single.mesh->world());
    const auto found = reader.find_newest_valid();
    ASSERT_ALL_RANKS(found.has_value());
    EXPECT_ALL_RANKS(!test::same_bits(run.state(), alone.state())) << "before loading they differ";
    reader.load(*found, tensors_to_load(alone.engine(), restored));
    EXPECT_ALL_RANKS(test::same_bits(run.state(), alone.state()));
    EXPECT_ALL_RANKS(restored.step == 3 && restored.updates == 2 &&
                     restored.consumed_samples == 36 && restored.skipped_in_a_row == 1 &&
                     restored.best_val_loss == 0.1);
    mesh->world().barrier();
  }
}

double gpt_loss_over(Mesh& mesh) {
  return test::loss_of_validation(test::engine_options(test::tiny_gpt(), "fp32", 1), mesh);
}

TEST(ValidationLoss, SameBitsOnAnyNumberOfRanks) {
  const auto mesh = world_mesh();
  const auto alone = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::mpi);
  const double many = gpt_loss_over(*mesh);
  EXPECT_ALL_RANKS(many == gpt_loss_over(*alone));
  EXPECT_ALL_RANKS(many > 2 && many < 4);  // near log 19
  double lowest = many;
  mesh->world().all_reduce(&lowest, 1, DType::f64, ReduceOp::min);
  EXPECT_ALL_RANKS(lowest == many);
  // A single rank reads the same windows in the same order.
  test::SingleRank single;
  EXPECT_ALL_RANKS(many == gpt_loss_over(*single.mesh));
}

}  // namespace
}  // namespace choir
