// A run with several branches continues from the right checkpoint.
#include "src/store/manifest.hpp"

#include <gtest/gtest.h>

#include "src/comm/null_communicator.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

struct Branches : testing::Test {
  CheckpointStore store() { return {folder, *alone, {.retention = retention}}; }
  void save(const Branch& branch, std::int64_t step) {
    test::TensorSet set(test::Cut::slices, 0, 1);
    set.fill();
    CheckpointMeta meta = test::meta_of(step);
    meta.branch = branch;
    const SaveResult result = store().save(meta, set.tensors());
    ASSERT_TRUE(result.saved) << result.reason;
  }
  Branch begin(std::int64_t parent = -1) const {
    const CheckpointDirectory all(folder);
    if (parent < 0) return begin_branch(nullptr, all);
    const Manifest manifest = read_manifest(all.final_path(parent));
    return begin_branch(&manifest, all);
  }
  Checkpoint newest() { return store().find_newest_valid().value(); }
  void hide(std::int64_t step, bool hidden) const {
    const std::string manifest = folder + "/" + step_name(step) + "/" + kManifestName;
    const std::string aside = run.path() + "/hidden";
    hidden ? fs::rename(manifest, aside) : fs::rename(aside, manifest);
  }

  test::TemporaryDirectory run;
  std::string folder = run.path() + "/checkpoints";
  std::unique_ptr<Communicator> alone = make_null_communicator("alone", 0, 1);
  Retention retention{.keep_last = 100};
};

TEST_F(Branches, TheBranchThatBeganLastWins) {
  const Branch first = begin();
  save(first, 10), save(first, 20);
  EXPECT_EQ(newest().manifest.step, 20);
  hide(20, true);
  const Checkpoint older = newest();
  EXPECT_EQ(older.manifest.step, 10);
  EXPECT_TRUE(older.leaves_newer());
  const Branch second = begin(10);
  save(second, 15);
  hide(20, false);
  const Checkpoint found = newest();
  EXPECT_EQ(found.manifest.step, 15);
  EXPECT_EQ(found.manifest.branch.id, second.id);
  EXPECT_FALSE(found.leaves_newer());  // so another start stays on the branch
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_EQ(found.skipped[0].why, PassedOver::Why::abandoned);
  EXPECT_EQ(found.skipped[0].reason, "step_00000020: it belongs to branch " + first.id +
                                         ", which the run left after step 10 for branch " +
                                         second.id + "; checkpoint.resume=" + folder +
                                         "/step_00000020 continues from it");
  fs::remove(folder + "/step_00000015/state.h5");
  EXPECT_EQ(newest().manifest.step, 10) << "steps before the fork belong to both";
  hide(15, true);
  EXPECT_EQ(newest().manifest.step, 20) << "nothing is known of the other branch any more";
}

TEST_F(Branches, ABranchIsChosenByItsCheckpoint) {
  const Branch first = begin();
  save(first, 10), save(first, 20);
  const Branch second = begin(10);
  save(second, 15);
  const Branch third = begin(20);
  EXPECT_GT(third.began, second.began);
  EXPECT_GT(second.began, first.began);
  EXPECT_EQ(newest().manifest.step, 15);
  save(third, 25);
  EXPECT_EQ(newest().manifest.step, 25);
  fs::remove(folder + "/step_00000025/state.h5");
  EXPECT_EQ(newest().manifest.step, 20);
  ASSERT_EQ(third.forks.size(), 1u);
  EXPECT_EQ(third.forks[0].branch, first.id);
  EXPECT_TRUE(third.includes(first.id, 20));
  EXPECT_FALSE(third.includes(first.id, 21));
  EXPECT_FALSE(third.includes(second.id, 1));
}

TEST_F(Branches, CheckpointsWithoutABranchAreTheBeginningOfOne) {
  save({}, 1), save({}, 2);
  EXPECT_EQ(newest().manifest.step, 2);
  EXPECT_TRUE(newest().manifest.branch.id.empty());
  const Branch branch = begin(2);
  save(branch, 3);
  EXPECT_EQ(newest().manifest.step, 3);
  fs::remove(folder + "/step_00000003/state.h5");
  EXPECT_EQ(newest().manifest.step, 2);
}

// Other branches do not count for the number of kept checkpoints and are not removed: a person
// decides about them.
TEST_F(Branches, RetentionLeavesOtherBranchesAlone) {
  const Branch first = begin();
  save(first, 1), save(first, 8), save(first, 9);
  const Branch second = begin(1);
  retention.keep_last = 2;
  retention.keep_best = false;
  for (std::int64_t step = 2; step <= 4; ++step) save(second, step);
  EXPECT_EQ(CheckpointDirectory(folder).steps(), (std::vector<std::int64_t>{9, 8, 4, 3}));
}

// Its owner may change between any two saves, and its temporary files never collide with those of
// another.
TEST_F(Branches, ASaveOfAReplacedRunTouchesNothing) {
  save(begin(), 1);
  const std::string others = folder + "/step_00000002.b.tmp";
  fs::create_directory(others);
  const std::string before = read_text_file(folder + "/step_00000001/manifest.json");
  test::TensorSet set(test::Cut::slices, 0, 1);
  set.fill();
  for (int allowed = 0; allowed < 2; ++allowed)
    for (const std::int64_t step : {1, 2}) {
      int asked = 0;
      StoreOptions options;
      options.tag = "a";
      options.require_owned = [&] {
        if (++asked > allowed) throw StorageError("replaced");
      };
      CheckpointStore replaced(folder, *alone, options);
      const SaveResult result = replaced.save(test::meta_of(step), set.tensors());
      EXPECT_FALSE(result.saved);
      EXPECT_NE(result.reason.find("replaced"), std::string::npos) << result.reason;
      EXPECT_EQ(read_text_file(folder + "/step_00000001/manifest.json"), before);
      EXPECT_TRUE(fs::exists(others));
      EXPECT_FALSE(fs::exists(replaced.directory().temporary_path(step)));
      EXPECT_EQ(replaced.list(), std::vector<std::int64_t>{1});
    }
  EXPECT_EQ(store().recover().size(), 1u) << "the owner removes what any start left";
}

}  // namespace
}  // namespace choir
