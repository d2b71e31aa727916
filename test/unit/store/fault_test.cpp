// Faults while saving: errors, full disks, kills. This test has one rank; test/mpi has several.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "src/comm/null_communicator.hpp"
#include "src/store/store.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

constexpr const char* kInstants[] = {"layout", "reserve", "write",  "fsync", "manifest",
                                     "rename", "replace", "latest", "prune"};

class CheckpointFault : public ::testing::Test {
 protected:
  SaveResult save(std::int64_t step, FaultHook fault = {}, const std::string& run = {}) {
    StoreOptions options;
    options.retention = {2, 0, false};
    options.fault = std::move(fault);
    TensorSet set(Cut::slices, 0, 1, static_cast<std::uint64_t>(step));
    set.fill();
    return CheckpointStore((run.empty() ? run_.path() : run) + "/checkpoints", *alone_, options)
        .save(test::meta_of(step), set.tensors());
  }
  std::int64_t newest(const std::string& run = {}) {
    CheckpointStore reader((run.empty() ? run_.path() : run) + "/checkpoints", *alone_);
    const auto found = reader.find_newest_valid();
    if (!found) return -1;
    EXPECT_TRUE(found->skipped.empty()) << found->skipped.front().reason;
    TensorSet set(Cut::everything, 0, 1, static_cast<std::uint64_t>(found->manifest.step));
    reader.load(*found, set.tensors());
    EXPECT_EQ(set.wrong(), 0);
    return found->manifest.step;
  }
  /// Number of names that are neither a checkpoint nor `latest`.
  std::size_t leftovers() {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(run_.path() + "/checkpoints")) {
      const std::string name = entry.path().filename().string();
      count += step_of(name) < 0 && name != "latest";
    }
    return count;
  }

  test::TemporaryDirectory run_;
  std::unique_ptr<Communicator> alone_ = make_null_communicator("alone", 0, 1);
};

TEST_F(CheckpointFault, AnErrorAtAnyInstantIsAReason) {
  ASSERT_TRUE(save(10).saved);
  for (const char* instant : kInstants) {
    const std::string at = instant;
    const SaveResult result = save(10, [&](const char* now) {
      if (at == now) throw StorageError("injected at " + at, "try again");
    });
    const bool after = at == "latest" || at == "prune";
    EXPECT_EQ(result.saved, after) << at;
    if (after) {
      ASSERT_EQ(result.warnings.size(), 1u) << at;
      EXPECT_NE(result.warnings[0].find("injected"), std::string::npos);
    } else {
      EXPECT_NE(result.reason.find("injected at " + at), std::string::npos) << result.reason;
      EXPECT_NE(result.reason.find("try again"), std::string::npos) << result.reason;
    }
    EXPECT_EQ(leftovers(), 0u) << at;
    EXPECT_EQ(newest(), 10) << at;
  }
  EXPECT_TRUE(save(20).saved);
  EXPECT_EQ(newest(), 20);
}

/// Kills a child with kill -9 at every instant of a save, of a new step and of one that is
/// replaced.
TEST_F(CheckpointFault, KilledAtAnyInstantNothingCompleteIsLost) {
  std::int64_t step = 10;
  ASSERT_TRUE(save(step).saved);
  for (const bool replacing : {false, true})
    for (const char* instant : kInstants) {
      const std::string at = instant;
      if (at == "replace" && !replacing) continue;
      const std::int64_t next = replacing ? step : step + 10;
      const pid_t child = fork();
      if (child == 0) {
        save(next, [&](const char* now) {
          if (at == now) kill(getpid(), SIGKILL);
        });
        _exit(0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << at;
      const bool after = at == "latest" || at == "prune";
      if (at != "replace") {
        EXPECT_EQ(newest(), after ? next : step) << at;
      }
      CheckpointStore(run_.path() + "/checkpoints", *alone_).recover();
      EXPECT_EQ(newest(), after ? next : step) << at;
      EXPECT_EQ(leftovers(), 0u) << at;
      if (after) step = next;
    }
}

TEST_F(CheckpointFault, ADirectoryThatIsAFileIsAReason) {
  std::ofstream(run_.path() + "/checkpoints") << "a file";
  const SaveResult result = save(1);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.reason.find(run_.path() + "/checkpoints"), std::string::npos) << result.reason;
}

TEST_F(CheckpointFault, ADirectoryOneMayNotWriteIsAReason) {
  using fs::perms;
  constexpr uid_t kNobody = 65534;  // root may write anywhere
  const uid_t me = geteuid(), writer = me == 0 ? kNobody : me;
  if (seteuid(writer) != 0) GTEST_SKIP() << "root that may not become somebody else";
  ASSERT_EQ(seteuid(me), 0);
  constexpr perms kWrite = perms::owner_write | perms::group_write | perms::others_write;
  fs::permissions(run_.path(), perms::all & ~kWrite);
  ASSERT_EQ(seteuid(writer), 0);
  const SaveResult result = save(1);
  ASSERT_EQ(seteuid(me), 0);
  fs::permissions(run_.path(), perms::owner_all);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.reason.find("Permission denied"), std::string::npos) << result.reason;
}

TEST_F(CheckpointFault, AFullDiskIsRefusedBeforeAnythingIsWritten) {
  const std::string small = run_.path() + "/small";
  fs::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=5m") != 0)
    GTEST_SKIP() << "cannot mount a tmpfs";
  EXPECT_TRUE(save(1, {}, small).saved);  // 3 MB
  bool wrote = false;
  const SaveResult full = save(
      2, [&](const char* now) { wrote = wrote || std::string(now) == "write"; }, small);
  EXPECT_FALSE(full.saved);
  EXPECT_FALSE(wrote);
  EXPECT_NE(full.reason.find("No space left"), std::string::npos) << full.reason;
  EXPECT_NE(full.reason.find("free some space"), std::string::npos) << full.reason;
  EXPECT_EQ(newest(small), 1);
  // There is room for all but the last bytes: whatever is missing, there is a reason and the next
  // save works again.
  for (const std::int64_t left : {0, 4096, 8192, 65536, 2900000}) {
    std::error_code why;
    const auto free_bytes = static_cast<std::int64_t>(fs::space(small, why).available);
    if (free_bytes < left) continue;
    std::ofstream(small + "/ballast")
        << std::string(static_cast<std::size_t>(free_bytes - left), 'x');
    EXPECT_FALSE(save(3, {}, small).saved) << left;
    fs::remove(small + "/ballast");
    EXPECT_EQ(newest(small), 1) << left;
  }
  fs::remove_all(small + "/checkpoints");
  EXPECT_TRUE(save(4, {}, small).saved);
  EXPECT_EQ(newest(small), 4);
  EXPECT_EQ(umount(small.c_str()), 0);
}

/// The size limit of a process is met inside pwrite or fallocate (EFBIG), without root.
TEST_F(CheckpointFault, AFileThatMayNotGrowIsAReason) {
  ASSERT_TRUE(save(1).saved);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{1 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const SaveResult result = save(2);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.reason.find("File too large"), std::string::npos) << result.reason;
  EXPECT_EQ(newest(), 1);
  EXPECT_TRUE(save(2).saved);
}

}  // namespace
}  // namespace choir
