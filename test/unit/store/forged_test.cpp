// Checkpoints that somebody forged to do harm: all checksums are right, but the contents are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/comm/null_communicator.hpp"
#include "src/store/directory.hpp"
#include "src/store/state_file.hpp"
#include "test/support/has.hpp"
#include "test/support/sealed_checkpoint.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::Cut;
using test::TensorSet;

class ForgedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    TensorSet set(Cut::slices, 0, 1, kStep);
    set.fill();
    CheckpointMeta meta = test::meta_of(kStep);
    meta.json = json_;
    const SaveResult result = CheckpointStore(run_.path(), *alone_).save(meta, set.tensors());
    ASSERT_TRUE(result.saved) << result.reason;
    path_ = result.path;
    manifest_ = read_manifest(path_);
    state_ = read_text_file(path_ + "/state.h5");
    ASSERT_TRUE(manifest_.meta.has_value());
  }

  /// Overwrites all of HDF5's own bytes except the text.
  void scramble() {
    const std::string before = state_;
    for (const FileRegion& region : regions_of(manifest_.tensors, manifest_.state_bytes))
      if (region.tensor < 0)
        std::fill_n(state_.begin() + region.offset, region.bytes, static_cast<char>(0x5a));
    const auto& meta = *manifest_.meta;
    std::copy_n(before.begin() + meta.offset, meta.bytes, state_.begin() + meta.offset);
  }
  void write() {
    test::seal(manifest_, state_);
    write_text_file(path_ + "/state.h5", state_);
    write_text_file(path_ + "/manifest.json", manifest_.to_text());
  }
  /// The reason of the refusal, or "" if everything was read back unchanged.
  std::string reason() {
    try {
      for (const Verify verify : {Verify::sizes, Verify::checksums}) {
        const Checkpoint found = open_checkpoint(path_, *alone_, verify);
        TensorSet set(Cut::everything, 0, 1, kStep);
        set.poison();
        load_checkpoint(found, set.tensors(), *alone_);
        EXPECT_EQ(set.wrong(), 0);
        EXPECT_EQ(found.json, json_);
      }
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  }

  static constexpr std::int64_t kStep = 5, kHeader = 26;  // bytes of the attribute before its text
  test::TemporaryDirectory run_;
  std::unique_ptr<Communicator> alone_ = make_null_communicator("alone", 0, 1);
  std::string json_ = test::meta_of(kStep).json, path_, state_;
  Manifest manifest_;
};

TEST_F(ForgedCheckpoint, ComesBackAsItWasWithoutForgery) {
  write();
  EXPECT_EQ(reason(), "");
}

// HDF5 would refuse the file, or worse: it must never open it.
TEST_F(ForgedCheckpoint, NothingOfHdf5IsRead) {
  scramble();
  write();
  EXPECT_EQ(reason(), "");
}

// A manifest of older programs, which left the position of the text to HDF5.
TEST_F(ForgedCheckpoint, AnOlderManifestFindsTheTextWithoutHdf5) {
  manifest_.meta.reset();
  write();
  EXPECT_EQ(reason(), "");
  // ... in a file that HDF5 can no longer read.
  const std::int64_t at = static_cast<std::int64_t>(state_.find("meta"));
  std::fill_n(state_.begin(), 8, 'x');
  ASSERT_GT(at, 8);
  write();
  EXPECT_EQ(reason(), "");
}

TEST_F(ForgedCheckpoint, AnOlderManifestIsRefusedWithoutTheText) {
  const Manifest with = manifest_;
  scramble();
  manifest_.meta.reset();
  write();
  EXPECT_TRUE(test::has(reason(), "is not where choir writes it"));
  // Lengths that reach beyond the end of the file.
  state_ = read_text_file(path_ + "/state.h5");
  const std::string head("\x03\0\x05\0\x08\0\x04\0\x01meta\0\x13\x10\0\0\xff\xff\xff\x7f", 22);
  std::copy(head.begin(), head.end(), state_.begin() + with.meta->offset - kHeader);
  write();
  EXPECT_TRUE(test::has(reason(), "is not where choir writes it"));
}

TEST_F(ForgedCheckpoint, ALongTextIsFoundInAnOlderFileToo) {
  json_.assign(300000, 'x');  // larger than HDF5 keeps in the header of an object
  SetUp();
  manifest_.meta.reset();
  write();
  EXPECT_EQ(reason(), "");
}

TEST_F(ForgedCheckpoint, ATextThatIsSaidToLieElsewhereIsRefused) {
  const Manifest good = manifest_;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto refused = [&](std::int64_t offset, std::int64_t bytes) {
    manifest_ = good;
    test::seal(manifest_, state_);
    manifest_.meta = {offset, bytes, 0};
    write_text_file(path_ + "/manifest.json", manifest_.to_text());
    return reason();
  };
  const TensorRecord& tensor = *good.find("optimizer/v/big");
  for (const auto& [offset, bytes] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{tensor.offset, 8},
                                                          {tensor.offset - 4, 8},
                                                          {good.state_bytes, 1},
                                                          {good.state_bytes - 4, most},
                                                          {most, most},
                                                          {0, most},
                                                          {-1, 4},
                                                          {good.meta->offset, -1}})
    EXPECT_TRUE(test::has(refused(offset, bytes), "does not lie between the tensors"))
        << offset << " " << bytes;
  EXPECT_TRUE(test::has(refused(good.meta->offset, good.meta->bytes), "is damaged"));
}

}  // namespace
}  // namespace choir
