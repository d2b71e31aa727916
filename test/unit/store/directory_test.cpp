#include "src/store/directory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

void put(const std::string& directory, const std::string& text) {
  fs::create_directories(directory);
  write_text_file(directory + "/mark", text);
}

TEST(CheckpointDirectoryTest, StepNames) {
  EXPECT_EQ(step_name(100), "step_00000100");
  EXPECT_EQ(step_name(123456789012), "step_123456789012");
  for (const std::int64_t step : {0L, 7L, 99999999L, 100000000L})
    EXPECT_EQ(step_of(step_name(step)), step);
  for (const char* bad :
       {"step_100", "step_00000100.tmp", "step_", "step_0000010x", "latest", "step_-0000001"})
    EXPECT_EQ(step_of(bad), -1) << bad;
}

TEST(CheckpointDirectoryTest, ListsNewestFirstAndOnlyCheckpoints) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path() + "/checkpoints");
  EXPECT_TRUE(folder.steps().empty());
  for (const char* name :
       {"step_00000100", "step_00000300", "step_00000200", "step_00000400.tmp", "notes"})
    fs::create_directories(folder.path() + "/" + name);
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{300, 200, 100}));
}

TEST(CheckpointDirectoryTest, CommitReplacesTheSameStep) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path() + "/checkpoints");
  for (const char* text : {"first", "second"}) {
    put(folder.begin(5), text);
    folder.commit(5);
    EXPECT_EQ(read_text_file(folder.final_path(5) + "/mark"), text);
  }
  EXPECT_FALSE(fs::exists(folder.final_path(5) + ".old"));
  EXPECT_FALSE(fs::exists(folder.temporary_path(5)));
}

TEST(CheckpointDirectoryTest, AFailedReplacementPutsTheOldOneBack) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path() + "/checkpoints");
  put(folder.begin(5), "first");
  folder.commit(5);
  put(folder.begin(5), "second");
  EXPECT_THROW(folder.commit(5, [] { throw StorageError("stop"); }), StorageError);
  EXPECT_EQ(read_text_file(folder.final_path(5) + "/mark"), "first");
}

TEST(CheckpointDirectoryTest, RecoverRestoresAndCleans) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path());
  put(folder.final_path(1) + ".old", "restored");  // killed between the two renames
  put(folder.final_path(2), "new");                // killed after them
  put(folder.final_path(2) + ".old", "old");
  put(folder.temporary_path(3), "half");
  put(run.path() + "/mine.tmp", "not ours");
  fs::create_symlink("step_00000002", run.path() + "/latest.tmp");
  const auto lines = folder.recover();
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_EQ(read_text_file(folder.final_path(1) + "/mark"), "restored");
  EXPECT_EQ(read_text_file(folder.final_path(2) + "/mark"), "new");
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{2, 1}));
  EXPECT_FALSE(fs::exists(folder.temporary_path(3)));
  EXPECT_FALSE(fs::exists(folder.final_path(2) + ".old"));
  EXPECT_FALSE(fs::is_symlink(run.path() + "/latest.tmp"));
  EXPECT_TRUE(fs::exists(run.path() + "/mine.tmp"));
  EXPECT_TRUE(folder.recover().empty());
}

TEST(CheckpointDirectoryTest, LatestFollows) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path());
  put(folder.final_path(1), "one");
  put(folder.final_path(2), "two");
  folder.point_latest(1);
  EXPECT_EQ(read_text_file(run.path() + "/latest/mark"), "one");
  folder.point_latest(2);
  EXPECT_EQ(read_text_file(run.path() + "/latest/mark"), "two");
}

TEST(CheckpointDirectoryTest, WhatStandsInTheWayOfLatestIsMovedAside) {
  const test::TemporaryDirectory run;
  const CheckpointDirectory folder(run.path());
  put(folder.final_path(1), "one");
  EXPECT_EQ(folder.point_latest(1), "");
  for (const std::string& place :
       {run.path() + "/latest.moved-1", run.path() + "/latest.moved-2"}) {
    fs::remove(run.path() + "/latest");
    put(run.path() + "/latest", "a copy");
    EXPECT_NE(folder.point_latest(1).find("moved to " + place), std::string::npos);
    EXPECT_EQ(read_text_file(place + "/mark"), "a copy");
    EXPECT_EQ(read_text_file(run.path() + "/latest/mark"), "one");
  }
}

TEST(CheckpointDirectoryTest, PipesAreRefusedAtOnce) {
  const test::TemporaryDirectory run;
  const std::string pipe = run.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_text_file(pipe), StorageError);
  EXPECT_THROW(read_text_file("/dev/zero"), StorageError);
}

TEST(CheckpointDirectoryTest, NothingIsWrittenThroughALink) {
  const test::TemporaryDirectory run;
  write_text_file(run.path() + "/precious", "precious");
  fs::create_symlink("precious", run.path() + "/deck.json.new");
  EXPECT_THROW(write_text_file(run.path() + "/deck.json.new", "{}"), StorageError);
  EXPECT_EQ(read_text_file(run.path() + "/precious"), "precious");
}

}  // namespace
}  // namespace choir
