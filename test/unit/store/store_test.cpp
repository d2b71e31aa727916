#include "src/store/store.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "src/comm/null_communicator.hpp"
#include "src/store/slab_io.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  CheckpointStore store(StoreOptions options = {}) {
    options.retention.keep_last = 100;
    return {folder_, *alone_, std::move(options)};
  }
  void save(std::int64_t step) {
    TensorSet set(Cut::slices, 0, 1, static_cast<std::uint64_t>(step));
    set.fill();
    const SaveResult result = store().save(test::meta_of(step), set.tensors());
    ASSERT_TRUE(result.saved) << result.reason;
  }
  std::string state(std::int64_t step) { return folder_ + "/" + step_name(step) + "/state.h5"; }
  std::string manifest(std::int64_t step) {
    return folder_ + "/" + step_name(step) + "/manifest.json";
  }

  /// Loads the newest checkpoint; returns -1 if there is none, otherwise its step; fails if a bit
  /// is wrong.
  std::int64_t newest() {
    CheckpointStore reader = store();
    const auto found = reader.find_newest_valid();
    if (!found) return -1;
    skipped_.clear();
    for (const PassedOver& one : found->skipped) skipped_.push_back(one.reason);
    TensorSet set(Cut::everything, 0, 1, static_cast<std::uint64_t>(found->manifest.step));
    set.poison();
    reader.load(*found, set.tensors());
    EXPECT_EQ(set.wrong(), 0);
    EXPECT_EQ(found->json, test::meta_of(0).json);
    return found->manifest.step;
  }

  test::TemporaryDirectory run_;
  std::string folder_ = run_.path() + "/checkpoints";
  std::unique_ptr<Communicator> alone_ = make_null_communicator("alone", 0, 1);
  std::vector<std::string> skipped_;
};

TEST_F(CheckpointStoreTest, NothingThereIsNoError) {
  EXPECT_EQ(newest(), -1);
  fs::create_directories(folder_);
  EXPECT_EQ(newest(), -1);
}

TEST_F(CheckpointStoreTest, ComesBackBitwise) {
  TensorSet set(Cut::rows, 0, 1, 12);
  set.fill();
  std::int64_t reported = 0;
  StoreOptions options;
  options.progress = [&](const char*, std::int64_t done, std::int64_t total) {
    EXPECT_LE(done, total);
    reported = done;
  };
  const SaveResult result = store(options).save(test::meta_of(12), set.tensors());
  ASSERT_TRUE(result.saved) << result.reason;
  EXPECT_EQ(result.bytes, 65 * 33 * 8 + 255 * 8 + 1023 * 2 + 700001 * 4 + 24 + 2 + 8 + 13);
  EXPECT_EQ(reported, result.bytes);
  EXPECT_TRUE(result.warnings.empty());
  EXPECT_EQ(result.path, folder_ + "/step_00000012");
  EXPECT_EQ(newest(), 12);
  EXPECT_EQ(fs::read_symlink(folder_ + "/latest"), "step_00000012");
}

TEST_F(CheckpointStoreTest, EveryPathToACheckpointOpensIt) {
  save(1), save(2);
  for (const std::string& path :
       {folder_ + "/latest", folder_, run_.path(), folder_ + "/step_00000002/"})
    EXPECT_EQ(open_checkpoint(path, *alone_).manifest.step, 2) << path;
  EXPECT_EQ(open_checkpoint(folder_ + "/step_00000001", *alone_, Verify::sizes).manifest.step, 1);
  EXPECT_THROW(open_checkpoint(folder_ + "/step_00000003", *alone_), StorageError);
  fs::create_directories(run_.path() + "/empty");
  EXPECT_THROW(open_checkpoint(run_.path() + "/empty", *alone_), StorageError);
}

TEST_F(CheckpointStoreTest, SavingTheSameStepReplacesIt) {
  save(5);
  test::flip_bit(state(5), 50000);
  save(5);
  EXPECT_EQ(newest(), 5);
  EXPECT_TRUE(skipped_.empty());
}

TEST_F(CheckpointStoreTest, DamageFallsBackAndIsNamed) {
  for (const std::int64_t step : {1, 2, 3, 4, 5, 6}) save(step);
  fs::resize_file(state(6), fs::file_size(state(6)) - 1);
  const Manifest five = read_manifest(folder_ + "/" + step_name(5));
  test::flip_bit(state(5), five.find("optimizer/v/big")->offset + 1234567);
  fs::remove(manifest(4));
  std::ofstream(manifest(3)) << "garbage";
  test::flip_bit(state(2), 9);  // HDF5's superblock
  EXPECT_EQ(newest(), 1);
  ASSERT_EQ(skipped_.size(), 5u);
  const char* words[] = {"the manifest says", "tensor optimizer/v/big", "no ", "not valid JSON",
                         "HDF5's own part"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(skipped_[i].starts_with(step_name(6 - static_cast<std::int64_t>(i))))
        << skipped_[i];
    EXPECT_NE(skipped_[i].find(words[i]), std::string::npos) << skipped_[i];
  }
  fs::remove(state(1));
  try {
    newest();
    FAIL() << "accepted";
  } catch (const StorageError& error) {
    for (std::int64_t step = 1; step <= 6; ++step)
      EXPECT_NE(std::string(error.what()).find(step_name(step)), std::string::npos) << error.what();
  }
}

TEST_F(CheckpointStoreTest, EveryFlippedByteIsSeen) {
  save(1);
  const auto bytes = static_cast<std::int64_t>(fs::file_size(state(1)));
  for (int i = 0; i < 60; ++i) {
    const auto at = static_cast<std::int64_t>(test::mixed(static_cast<std::uint64_t>(i)) %
                                              static_cast<std::uint64_t>(i % 2 ? bytes : 20000));
    test::flip_bit(state(1), at);
    EXPECT_THROW(newest(), StorageError) << at;
    test::flip_bit(state(1), at);
  }
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointStoreTest, TheManifestSaysTheStepNotTheName) {
  for (const std::int64_t step : {1, 2}) save(step);
  fs::copy(folder_ + "/" + step_name(1), folder_ + "/" + step_name(99));
  EXPECT_EQ(newest(), 2);
  ASSERT_EQ(skipped_.size(), 1u);
  EXPECT_NE(skipped_[0].find("step_00000099: its manifest is of step 1"), std::string::npos)
      << skipped_[0];
  StoreOptions options;
  options.retention.keep_last = 2;
  TensorSet set(Cut::slices, 0, 1, 3);
  set.fill();
  CheckpointStore keeping(folder_, *alone_, options);
  ASSERT_TRUE(keeping.save(test::meta_of(3), set.tensors()).saved);
  EXPECT_EQ(CheckpointDirectory(folder_).steps(), (std::vector<std::int64_t>{99, 3, 2}));
}

TEST_F(CheckpointStoreTest, VerificationTellsTensorsApart) {
  save(1);
  const std::string path = folder_ + "/" + step_name(1);
  const Manifest table = read_manifest(path);
  test::flip_bit(state(1), table.find("state/counters")->offset + 23);
  const Verification result = verify_checkpoint(path, table, *alone_);
  EXPECT_FALSE(result.good());
  for (std::size_t i = 0; i < table.tensors.size(); ++i)
    EXPECT_EQ(result.tensor_good[i], table.tensors[i].name != "state/counters");
  EXPECT_NE(result.damage.find("state/counters"), std::string::npos);
}

TEST_F(CheckpointStoreTest, WhatDoesNotFitIsNamed) {
  save(1);
  CheckpointStore reader = store();
  const Checkpoint found = *reader.find_newest_valid();
  const auto reason = [&](auto change, const std::string& scope = "") -> std::string {
    TensorSet set(Cut::nothing, 0, 1);
    change(set.tensors());
    try {
      reader.load(found, set.tensors(), scope);
    } catch (const StorageError& error) {
      return error.what();
    }
    return "accepted";
  };
  using Tensors = std::vector<StoredTensor>;
  EXPECT_EQ(reason([](Tensors&) {}), "accepted");
  EXPECT_NE(reason([](Tensors& t) {
              t[0].shape = {65, 34};
            })
                .find("parameters/embedding.weight is stored as f32 [65, 33], but requested as f32 "
                      "[65, 34]"),
            std::string::npos);
  EXPECT_NE(reason([](Tensors& t) {
              t[2].dtype = DType::f16;
            }).find("stored as bf16 [1023], but requested as f16"),
            std::string::npos);
  EXPECT_NE(
      reason([](Tensors& t) { t[4].name = "optimizer/v/other"; })
          .find("not in the checkpoint: optimizer/v/other; in the checkpoint but not requested: "
                "optimizer/v/big"),
      std::string::npos);
  const auto only_parameters = [](Tensors& t) { t.resize(3); };
  EXPECT_NE(reason(only_parameters).find("and 2 more"), std::string::npos);
  EXPECT_EQ(reason(only_parameters, "parameters/"), "accepted");
}

TEST_F(CheckpointStoreTest, WhatConvertsIsRounded) {
  constexpr std::int64_t kCount = 600000;  // of several pieces
  std::vector<float> wide(kCount), back(kCount);
  std::vector<bf16> narrow(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    wide[static_cast<std::size_t>(i)] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
  const auto tensor = [](DType dtype, void* data) {
    const auto half = kCount / 2 + 1;
    auto* const second =
        static_cast<std::byte*>(data) + static_cast<std::size_t>(half) * size_of(dtype);
    return std::vector<StoredTensor>{{.name = "parameters/w",
                                      .dtype = dtype,
                                      .shape = {kCount},
                                      .pieces = {{0, half, data}, {half, kCount - half, second}}}};
  };
  CheckpointStore keeper = store();
  ASSERT_TRUE(keeper.save(test::meta_of(1), tensor(DType::f32, wide.data())).saved);
  Checkpoint found = *keeper.find_newest_valid();
  std::vector<StoredTensor> wanted = tensor(DType::bf16, narrow.data());
  EXPECT_THROW(keeper.load(found, wanted), StorageError) << "unless it is told";
  wanted[0].converts = true;
  keeper.load(found, wanted);
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i].bits, bf16(wide[i]).bits) << i;
  ASSERT_TRUE(keeper.save(test::meta_of(2), tensor(DType::bf16, narrow.data())).saved);
  found = *keeper.find_newest_valid();
  wanted = tensor(DType::f32, back.data());
  wanted[0].converts = true;
  keeper.load(found, wanted);
  for (std::size_t i = 0; i < wide.size(); ++i)
    ASSERT_EQ(back[i], static_cast<float>(narrow[i])) << i;
  wide[kCount - 3] = 3.4e38f;
  ASSERT_TRUE(keeper.save(test::meta_of(3), tensor(DType::f32, wide.data())).saved);
  wanted = tensor(DType::bf16, narrow.data());
  wanted[0].converts = true;
  try {
    keeper.load(*keeper.find_newest_valid(), wanted);
    FAIL() << "infinity";
  } catch (const StorageError& error) {
    EXPECT_NE(std::string(error.what()).find("element 599997 is stored as f32 and too large"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(CheckpointStoreTest, PiecesThatDoNotCoverAreTheProgrammersMistake) {
  const auto saving = [&](auto change) {
    TensorSet set(Cut::slices, 0, 1);
    change(set.tensors()[0].pieces);
    store().save(test::meta_of(1), set.tensors());
  };
  using Pieces = std::vector<StoredPiece>;
  EXPECT_THROW(saving([](Pieces& p) { --p[0].count; }), Error);
  EXPECT_THROW(saving([](Pieces& p) { --p[0].first; }), Error);
  EXPECT_THROW(saving([](Pieces& p) { ++p[0].first; }), Error);
  EXPECT_THROW(saving([](Pieces& p) { p.push_back(p[0]); }), Error);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(CheckpointStoreTest, PrunesByTheRules) {
  StoreOptions options;
  options.retention = {2, 40, true};
  CheckpointStore pruning(folder_, *alone_, options);
  TensorSet set(Cut::slices, 0, 1);
  set.fill();
  const double metric[] = {3.0, 1.0, 2.0, 2.5, 2.6, 2.7, 2.8};
  for (int i = 0; i < 7; ++i)
    ASSERT_TRUE(pruning.save(test::meta_of(10 * (i + 1), metric[i]), set.tensors()).saved);
  EXPECT_EQ(pruning.list(), (std::vector<std::int64_t>{70, 60, 40, 20}));
}

TEST_F(CheckpointStoreTest, DamagedOnesDoNotCountAsKept) {
  for (const std::int64_t step : {1, 2, 3}) save(step);
  fs::remove(manifest(2)), fs::remove(manifest(3));
  StoreOptions options;
  options.retention = {2, 0, false};
  TensorSet set(Cut::slices, 0, 1);
  set.fill();
  ASSERT_TRUE(
      CheckpointStore(folder_, *alone_, options).save(test::meta_of(4), set.tensors()).saved);
  EXPECT_EQ(store().list(), (std::vector<std::int64_t>{4, 3, 2, 1}));
}

/// Host memory behind addresses that cannot be dereferenced: any access other than a copy by the
/// device crashes.
class FarDevice : public Device {
 public:
  static constexpr std::uintptr_t kShift = std::uintptr_t{1} << 60;
  static void* far(void* near) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(near) ^ kShift);
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return "far"; }
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*, std::size_t) noexcept override {}
  void zero(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void copy_from_host(void* to, const void* host, std::size_t bytes) override {
    std::memcpy(far(to), host, bytes);
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override {
    std::memcpy(host, far(const_cast<void*>(from)), bytes);
  }
};

TEST_F(CheckpointStoreTest, DeviceMemoryGoesThroughTheDevice) {
  FarDevice device;
  const auto move_away = [&](TensorSet& set) {
    for (StoredTensor& tensor : set.tensors()) {
      tensor.device = tensor.device ? nullptr : &device;
      for (StoredPiece& piece : tensor.pieces) piece.data = FarDevice::far(piece.data);
    }
  };
  TensorSet set(Cut::slices, 0, 1, 9);
  set.fill();
  move_away(set);
  ASSERT_TRUE(store().save(test::meta_of(9), set.tensors()).saved);
  EXPECT_EQ(newest(), 9);
  set.poison();
  CheckpointStore reader = store();
  reader.load(*reader.find_newest_valid(), set.tensors());
  move_away(set);
  EXPECT_EQ(set.wrong(), 0);
}

}  // namespace
}  // namespace choir
