// Tests of the bench of saves: on any number of ranks, with its own errors, and no file remains.
#include "src/store/bench_checkpoint.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/store/bench_checkpoint.hpp"
#include "src/store/collectives.hpp"
#include "src/store/write_probe.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

class BenchCheckpointTest : public ::testing::Test {
 protected:
  BenchCheckpointTest() : world_(make_mpi_communicator(MPI_COMM_WORLD, "world")) {
    if (world_->rank() == 0) folder_ = std::make_unique<test::TemporaryDirectory>();
    if (folder_) path_ = folder_->path();
    share_text(*world_, path_);
  }
  ~BenchCheckpointTest() override { world_->barrier(); }

  CheckpointBenchCase request(TensorSet& set) {
    return {.saved = set.tensors(),
            .held = set.tensors(),
            .device = device_.get(),
            .check = {},
            .meanwhile = {},
            .folder = path_,
            .rounds = 2};
  }
  TensorSet mine() const { return TensorSet(Cut::slices, world_->rank(), world_->size()); }

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<test::TemporaryDirectory> folder_;
  std::string path_;
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
};

TEST_F(BenchCheckpointTest, ReadsBackWhatItWrote) {
  TensorSet set = mine();
  CheckpointBenchCase run = request(set);
  int checks = 0, steps = 0;
  for (StoredTensor& tensor : run.saved) tensor.device = device_.get();
  run.check = [&] {
    ++checks;
    return SaveCheck{};
  };
  // The saved tensors change after the wait.
  run.meanwhile = [&](const std::function<void()>& wait) {
    wait();
    if (++steps == 1) set.poison();
  };
  const CheckpointBench bench = bench_checkpoint(*world_, run);
  EXPECT_ALL_RANKS(bench.valid());
  // Computed by hand from the shapes of the set: 2 x 65 x 33 + 700001 floats, 255 doubles ...
  EXPECT_EQ(bench.bytes, 4 * (2 * 65 * 33 + 700001) + 8 * (17 * 3 * 5 + 3 + 1) + 2 * 1024 + 13);
  EXPECT_EQ(bench.ranks, world_->size());
  for (const char* access : {"write", "save", "async", "stall", "read", "load"}) {
    EXPECT_EQ(bench.row(access).rounds.size(), 2u) << access;
    for (const AccessRound& round : bench.row(access).rounds) EXPECT_GT(round.total, 0) << access;
  }
  for (const double share : bench.ratios("stall", "async")) EXPECT_LT(share, 1);
  EXPECT_EQ(checks, 3);
  EXPECT_GE(steps, 3);
  EXPECT_EQ(bench.first_steps.size(), 2u);
  world_->barrier();
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(BenchCheckpointTest, AFolderThatIsNoneIsSaidByAllRanks) {
  TensorSet set = mine();
  CheckpointBenchCase run = request(set);
  run.folder = path_ + "/missing";
  std::string words;
  try {
    bench_checkpoint(*world_, run);
  } catch (const StorageError& error) {
    words = std::string(error.what()) + error.hint();
  }
  EXPECT_ALL_RANKS(words.find("cannot make the directory") != std::string::npos) << words;
  EXPECT_ALL_RANKS(words.find("--folder") != std::string::npos) << words;
}

// No disk has 2^60 bytes: the save is refused before a byte is written.
TEST_F(BenchCheckpointTest, AFullDiskIsSeenBeforehand) {
  const StoredTensor large{
      .name = "large", .dtype = DType::u8, .shape = {std::int64_t{1} << 60}, .pieces = {}};
  CheckpointBenchCase run{.saved = {large},
                          .held = {},
                          .device = device_.get(),
                          .check = {},
                          .meanwhile = {},
                          .folder = path_};
  std::string words;
  try {
    bench_checkpoint(*world_, run);
  } catch (const StorageError& error) {
    words = error.what();
  }
  EXPECT_ALL_RANKS(words.find("free, and this bench writes") != std::string::npos) << words;
  world_->barrier();
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(BenchCheckpointTest, WrongElementsAreCounted) {
  TensorSet set = mine();
  fill_pieces(set.tensors());
  EXPECT_EQ(wrong_elements(set.tensors()), 0);
  std::int64_t elements = 0;
  for (const StoredTensor& tensor : set.tensors())
    for (const StoredPiece& piece : tensor.pieces) {
      elements += piece.count;
      if (piece.count > 0) static_cast<unsigned char*>(piece.data)[0] ^= 1;
    }
  std::int64_t pieces = 0;
  for (const StoredTensor& tensor : set.tensors())
    for (const StoredPiece& piece : tensor.pieces) pieces += piece.count > 0;
  EXPECT_EQ(wrong_elements(set.tensors()), pieces);
  spoil_pieces(set.tensors());
  EXPECT_GT(wrong_elements(set.tensors()), elements * 9 / 10);
}

TEST_F(BenchCheckpointTest, TheProbeLeavesNothing) {
  EXPECT_ALL_RANKS(probe_write_rate(*world_, path_ + "/checkpoints", 100000) > 0);
  world_->barrier();
  EXPECT_TRUE(fs::is_empty(path_));
  EXPECT_ALL_RANKS(probe_write_rate(*world_, path_ + "/none/checkpoints", 100000) == 0);
}

}  // namespace
}  // namespace choir
