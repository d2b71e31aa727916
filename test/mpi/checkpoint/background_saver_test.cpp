// Saves by a thread of their own: what is copied is what is stored, whatever changes meanwhile.
#include "choir/checkpoint/background_saver.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "choir/checkpoint/collectives.hpp"
#include "choir/comm/mpi_communicator.hpp"
#include "choir/core/clock.hpp"
#include "test/unit/checkpoint/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

class BackgroundSaverTest : public ::testing::Test {
 protected:
  BackgroundSaverTest() : world_(make_mpi_communicator(MPI_COMM_WORLD, "world")) {
    if (world_->rank() == 0) run_ = std::make_unique<test::TemporaryDirectory>();
    if (run_) folder_ = run_->path() + "/checkpoints";
    share_text(*world_, folder_);
  }
  ~BackgroundSaverTest() override { world_->barrier(); }

  std::int64_t all(std::int64_t mine) {
    world_->all_reduce(&mine, 1, DType::i64, ReduceOp::sum);
    return mine;
  }
  TensorSet mine(std::uint64_t seed) {
    return TensorSet(Cut::slices, world_->rank(), world_->size(), seed);
  }
  /// Collective: elements of the newest checkpoint that are not those of `seed`, or 1000000 when it
  /// is of another step.
  std::int64_t wrong(std::int64_t step, std::uint64_t seed) {
    CheckpointStore store(folder_, *world_);
    const auto found = store.find_newest_valid();
    if (!found || found->manifest.step != step) return 1000000;
    TensorSet set(Cut::rows, world_->rank(), world_->size(), seed);
    set.poison();
    store.load(*found, set.tensors());
    return set.wrong();
  }

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<test::TemporaryDirectory> run_;
  std::string folder_;
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
};

TEST_F(BackgroundSaverTest, StoresWhatWasCopiedAndNotWhatCameAfter) {
  TensorSet set = mine(1);
  set.fill();
  std::atomic<bool> held{true};
  StoreOptions options;
  options.fault = [&](const char* now) {
    while (held && std::string(now) == "write") std::this_thread::yield();
  };
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), options);
  saver.start(test::meta_of(1), set.tensors());
  set.poison();  // as the next step would
  EXPECT_EQ(all(saver.poll().has_value()), 0) << "it is in flight";
  // The world is free for others meanwhile.
  EXPECT_EQ(all(1), world_->size());
  held = false;
  const SaveResult result = saver.wait();
  EXPECT_EQ(all(!result.saved), 0) << result.reason;
  EXPECT_FALSE(saver.pending());
  EXPECT_EQ(all(wrong(1, 1)), 0);
}

TEST_F(BackgroundSaverTest, OneAfterTheOther) {
  TensorSet set = mine(1);
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), {});
  for (const std::int64_t step : {1, 2, 3}) {
    TensorSet now = mine(static_cast<std::uint64_t>(step));
    now.fill();
    saver.start(test::meta_of(step), now.tensors());
    now.poison();
    EXPECT_EQ(all(!saver.wait().saved), 0);
    EXPECT_EQ(all(wrong(step, static_cast<std::uint64_t>(step))), 0);
  }
  set.fill();
  saver.start_in_place(test::meta_of(4), set.tensors());
  EXPECT_EQ(all(!saver.wait().saved), 0);
  EXPECT_EQ(all(wrong(4, 1)), 0);
}

TEST_F(BackgroundSaverTest, AFailureOfAnyRankIsAReasonEverywhere) {
  const int last = world_->size() - 1;
  TensorSet set = mine(1);
  set.fill();
  StoreOptions options;
  bool full = false;
  options.fault = [&](const char* now) {
    if (full && world_->rank() == last && std::string(now) == "fsync")
      throw StorageError("no space left on device");
  };
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), options);
  saver.start(test::meta_of(1), set.tensors());
  EXPECT_EQ(all(!saver.wait().saved), 0);
  full = true;
  saver.start(test::meta_of(2), set.tensors());
  const SaveResult failed = saver.wait();
  EXPECT_EQ(all(failed.saved), 0);
  EXPECT_NE(failed.reason.find("no space left on device"), std::string::npos) << failed.reason;
  EXPECT_EQ(all(wrong(1, 1)), 0);
  full = false;
  saver.start(test::meta_of(3), set.tensors());
  EXPECT_EQ(all(!saver.wait().saved), 0);
  EXPECT_EQ(all(wrong(3, 1)), 0);
}

// Errors of the main thread: the save in flight is completed, by the other threads of all ranks.
TEST_F(BackgroundSaverTest, AnExceptionWaitsForTheSaveInFlight) {
  TensorSet set = mine(1);
  set.fill();
  try {
    BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), {});
    saver.start(test::meta_of(1), set.tensors());
    set.poison();
    throw NumericError("the loss is not a number");
  } catch (const NumericError&) {
  }
  world_->barrier();
  EXPECT_EQ(all(wrong(1, 1)), 0);
}

TEST_F(BackgroundSaverTest, TooSmallASnapshotIsRefused) {
  TensorSet set = mine(1);
  BackgroundSaver saver(folder_, *world_, *device_, 64, {});
  EXPECT_THROW(saver.start(test::meta_of(1), set.tensors()), Error);
  EXPECT_FALSE(saver.pending());
}

}  // namespace
}  // namespace choir
