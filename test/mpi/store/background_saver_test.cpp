// Tests of saves by a background thread: the copied values are stored, whatever changes meanwhile.
#include "src/store/background_saver.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/quantities.hpp"
#include "src/store/collectives.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

class BackgroundSaverTest : public ::testing::Test {
 protected:
  static void copy_values(TensorSet& from, TensorSet& to) {
    for (std::size_t t = 0; t < from.tensors().size(); ++t)
      for (std::size_t p = 0; p < from.tensors()[t].pieces.size(); ++p) {
        const StoredPiece& piece = from.tensors()[t].pieces[p];
        std::memcpy(to.tensors()[t].pieces[p].data, piece.data,
                    static_cast<std::size_t>(piece.count) * size_of(from.tensors()[t].dtype));
      }
  }
  /// Marks the tensors as device memory, like parameters and moments.
  void on_device(TensorSet& set) {
    for (StoredTensor& tensor : set.tensors()) tensor.device = device_.get();
  }

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
  /// Collective: number of elements of the newest checkpoint that differ from those of `seed`, or
  /// 1000000 if it is of another step.
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
  set.poison();  // as the next step would do
  EXPECT_EQ(all(saver.poll().has_value()), 0) << "it is in flight";
  // Others may use the world communicator meanwhile.
  EXPECT_EQ(all(1), world_->size());
  held = false;
  const SaveResult result = saver.wait();
  EXPECT_EQ(all(!result.saved), 0) << result.reason;
  EXPECT_FALSE(saver.pending());
  EXPECT_EQ(all(wrong(1, 1)), 0);
}

TEST_F(BackgroundSaverTest, MemoryOfTheDeviceIsCopiedBesideTraining) {
  TensorSet set = mine(1);
  on_device(set);
  set.fill();
  std::atomic<bool> held{true};
  StoreOptions options;
  options.fault = [&](const char* now) {
    while (held && std::string(now) == "copy") std::this_thread::yield();
  };
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), options);
  saver.start(test::meta_of(1), set.tensors());
  TensorSet late = mine(2);  // tensors that start() has not copied yet may still change
  late.fill();
  copy_values(late, set);
  std::thread release([&] { held = false; });
  EXPECT_EQ(saver.await_copied(), "");
  EXPECT_GT(saver.copy_seconds(), 0);
  set.poison();
  release.join();
  EXPECT_EQ(all(!saver.wait().saved), 0);
  EXPECT_EQ(all(wrong(1, 2)), 0);
}

TEST_F(BackgroundSaverTest, WhatIsRefusedIsNotCommitted) {
  TensorSet set = mine(1);
  on_device(set);
  set.fill();
  std::vector<std::uint32_t> replica(900'001, 7);  // more than one chunk
  const auto check = [&] {
    return SaveCheck{.memory = {std::as_bytes(std::span(replica)), {}},
                     .judge = [](Communicator& comm, std::span<const std::uint64_t> digests) {
                       std::vector<std::uint64_t> everyones(static_cast<std::size_t>(comm.size()));
                       everyones[static_cast<std::size_t>(comm.rank())] = digests[0];
                       comm.all_gather(everyones.data(), 1, DType::i64);
                       for (const std::uint64_t other : everyones)
                         if (other != everyones[0]) return "rank 0 has another one";
                       return digests.size() == 2 ? "" : "digests are missing";
                     }};
  };
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), {});
  const auto save = [&](std::int64_t step) {
    saver.start(test::meta_of(step), set.tensors(), check());
    return saver.await_copied();
  };
  EXPECT_EQ(save(1), "");
  EXPECT_EQ(all(!saver.wait().saved), 0);
  const bool several = world_->size() > 1;
  if (world_->rank() == 0) replica.back() ^= 0x10;
  EXPECT_EQ(save(2), several ? "rank 0 has another one" : "");
  const SaveResult refused = saver.wait();
  EXPECT_EQ(all(refused.saved), several ? 0 : 1);
  EXPECT_EQ(refused.reason, several ? "rank 0 has another one" : "");
  EXPECT_EQ(all(wrong(several ? 1 : 2, 1)), 0) << "the one before stays";
  if (world_->rank() == 0) replica.back() ^= 0x10;
  EXPECT_EQ(save(3), "");
  EXPECT_EQ(all(!saver.wait().saved), 0);
  EXPECT_EQ(all(wrong(3, 1)), 0);
}

TEST_F(BackgroundSaverTest, WhereThereIsSomethingToJudgeNobodyGoesOnAlone) {
  TensorSet set = mine(1);
  on_device(set);
  set.fill();
  std::atomic<bool> held{world_->rank() == world_->size() - 1};
  StoreOptions options;
  options.fault = [&](const char* now) {
    while (held && std::string(now) == "copy") std::this_thread::yield();
  };
  BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), options);
  std::int64_t judged = 0;
  saver.start(test::meta_of(1), set.tensors(), {.judge = [&](Communicator& comm, auto) {
                ++judged;
                comm.all_reduce(&judged, 1, DType::i64, ReduceOp::sum);
                return std::string();
              }});
  std::atomic<bool> waits{true};
  std::thread update([&] {
    saver.await_copied();
    waits = false;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(all(waits), world_->size());
  held = false;
  update.join();
  EXPECT_EQ(judged, world_->size());
  EXPECT_EQ(all(!saver.wait().saved), 0);
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

// Errors of the main thread: the other threads of all ranks complete the save in flight.
TEST_F(BackgroundSaverTest, AnExceptionWaitsForTheSaveInFlight) {
  TensorSet set = mine(1);
  on_device(set);
  set.fill();
  try {
    BackgroundSaver saver(folder_, *world_, *device_, Snapshot::bytes_of(set.tensors()), {});
    saver.start(test::meta_of(1), set.tensors());
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
