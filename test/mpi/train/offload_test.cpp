// Tests of optimizer state in files, with every method of sharing it: the bits are those of state
// in memory.
#include <gtest/gtest.h>

#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/support/mpi_test.hpp"
#include "test/support/offload_case.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

/// Sizes of two axes; data-parallel ranks take the rest.
struct Sizes {
  int tensor = 1, pipeline = 1;
};

/// Data-parallel alone, and together with a tensor or a pipeline axis of two.
std::vector<Sizes> shapes() {
  if (test::world_size() % 2 != 0) return {{}};
  return {{}, {.tensor = 2}, {.pipeline = 2}};
}

TEST(OffloadOnRanks, ChangesNoBit) {
  for (const Sizes& shape : shapes()) {
    const int data = test::world_size() / (shape.tensor * shape.pipeline);
    const auto mesh =
        Mesh::over_world(Layout(shape.tensor, 1, data, shape.pipeline), Transport::automatic);
    for (const bool reproducible : {false, true}) {
      if (reproducible && (test::world_size() & (test::world_size() - 1)) != 0) continue;
      for (const char* precision : {"fp32", "bf16-mixed"})
        for (const int stage : {0, 1, 2, 3}) {
          EngineOptions options =
              test::engine_options(test::tiny_gpt(), precision, 2, reproducible);
          options.zero.stage = stage;
          const auto train = [&] {
            return test::run_offloaded(options, *mesh, std::make_unique<CpuDevice>(), 4);
          };
          const test::OffloadRun whole = train();
          options.offload = test::offload_to_file();
          EXPECT_ALL_RANKS(same_bits(whole, train())) << precision << " stage " << stage << " tp "
                                                      << shape.tensor << " pp " << shape.pipeline;
          if (stage < 2) continue;
          options.offload = test::with_gradients(test::offload_to_file());
          EXPECT_ALL_RANKS(same_bits(whole, train()))
              << precision << " stage " << stage << " tp " << shape.tensor << " pp "
              << shape.pipeline << ", gradients";
        }
    }
  }
}

TEST(OffloadOnRanks, ResumesAcrossPlacesAndStages) {
  const auto mesh = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic);
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (mesh->rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(mesh->world(), path);
  const bool exact = (test::world_size() & (test::world_size() - 1)) == 0;
  std::int64_t saved = 0;
  for (const bool file_first : {false, true}) {
    const OffloadOptions file = test::offload_to_file();
    EngineOptions options = test::engine_options(test::tiny_llama(), "bf16-mixed", 2, exact);
    options.zero.stage = 1;
    options.offload = file_first ? file : OffloadOptions{};
    test::EngineRun run(options, *mesh);
    run.losses(2);
    Progress progress{.step = 2, .updates = 2};
    CheckpointStore store(path, mesh->world());
    ASSERT_ALL_RANKS(
        store.save({.step = ++saved, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
    run.losses(2);
    for (const int stage : {1, exact ? 3 : 1}) {
      options.zero.stage = stage;
      options.offload = file_first ? OffloadOptions{} : file;
      test::EngineRun next(options, *mesh);
      Progress restored;
      store.load(*store.find_newest_valid(), tensors_to_load(next.engine(), restored));
      next.engine().instance().publish();
      next.engine().resume(restored.update_state());
      next.start_at(2);
      next.losses(2);
      EXPECT_ALL_RANKS(test::same_bits(run.state(), next.state())) << file_first << stage;
    }
  }
}

// One rank cannot have its file: all ranks report it, before any of them waits for the file.
TEST(OffloadOnRanks, OneFullDiskStopsAll) {
  for (const Sizes& shape : shapes()) {
    const int data = test::world_size() / (shape.tensor * shape.pipeline);
    const auto mesh =
        Mesh::over_world(Layout(shape.tensor, 1, data, shape.pipeline), Transport::automatic);
    EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
    options.offload = test::offload_to_file();
    if (mesh->rank() == test::world_size() - 1) options.offload.directory = "/proc/no/such/place";
    std::string said;
    try {
      const test::EngineRun run(options, *mesh);
    } catch (const StorageError& error) {
      said = describe(error);
    }
    EXPECT_ALL_RANKS(said.find("cannot make a file in /proc/no/such/place") != std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace choir
