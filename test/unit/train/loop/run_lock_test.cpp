// Tests which process may write a run directory, if locks of other hosts are visible, are not
// visible, or do not exist.
#include "src/train/loop/run_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

int no_locks(int, int) {
  errno = ENOSYS;
  return -1;
}

struct RunLockTest : testing::Test {
  RunLockTest() {
    folder = testing::TempDir() + "choir_run_lock_XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) ADD_FAILURE() << folder;
  }
  ~RunLockTest() override { fs::remove_all(folder); }
  RunLock::Options options() {
    return {.host = "here",
            .patience = 0.05,
            .beat = 0.1,
            .lease = 20,
            .say = [&](const std::string& text) { said.push_back(text); },
            .lock = with_locks ? nullptr : no_locks};
  }
  std::unique_ptr<RunLock> lock() {
    return std::make_unique<RunLock>(folder, folder + "/log.txt", options());
  }
  std::string refusal() {
    try {
      lock();
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  }
  static std::string loss(const RunLock& lock) {
    try {
      lock.require_owned();
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  }
  std::string sign() const {
    std::ifstream file(folder + "/in_use");
    std::string line;
    std::getline(file, line);
    return line;
  }
  void give_sign(int number) const {
    std::ofstream(folder + "/fresh") << "there 17 " << number << "\n";
    fs::rename(folder + "/fresh", folder + "/in_use");
  }
  std::string in_use_by(const std::string& who) const {
    return "another run (" + who + ") is using the run directory '" + folder + "'";
  }
  std::string owner() const { return "process " + std::to_string(::getpid()) + " on here"; }
  std::string me() const { return "here " + std::to_string(::getpid()); }

  std::string folder;
  std::vector<std::string> said;
  bool with_locks = true;
};

TEST_F(RunLockTest, GivesSignsAndTakesThemBack) {
  for (const bool locks : {true, false}) {
    with_locks = locks;
    {
      const auto mine = lock();
      const std::string first = sign();
      EXPECT_TRUE(first.starts_with(me() + " ")) << first;
      while (sign() == first) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(refusal(), in_use_by(owner()));
      EXPECT_EQ(loss(*mine), "");
      EXPECT_FALSE(mine->lost());
    }
    EXPECT_FALSE(fs::exists(folder + "/in_use"));
    EXPECT_EQ(refusal(), "");
    EXPECT_TRUE(said.empty());
  }
}

// A dead host left its sign, and a lock for a while.
TEST_F(RunLockTest, WhatADeadHostLeftIsTakenOver) {
  give_sign(3);
  const int left = open((folder + "/log.txt").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_EQ(flock(left, LOCK_EX | LOCK_NB), 0);
  std::thread lease([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // twice as long as it is watched
    close(left);
  });
  const auto mine = lock();
  lease.join();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("was left in use by process 17 on there"), std::string::npos) << said[0];
  EXPECT_TRUE(sign().starts_with("here ")) << sign();
}

// A killed process blocks nobody, and nobody waits for a sign of it.
TEST_F(RunLockTest, WhatADeadProcessLeftIsTakenOverAtOnce) {
  for (const bool locks : {true, false}) {
    with_locks = locks;
    const pid_t child = fork();
    if (child == 0) {
      new RunLock(folder, folder + "/log.txt", options());
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    EXPECT_TRUE(sign().starts_with("here " + std::to_string(child) + " ")) << sign();
    const auto mine = lock();
    EXPECT_TRUE(sign().starts_with(me() + " ")) << sign();
    EXPECT_TRUE(said.empty());
  }
}

// A copy of a directory in use belongs to nobody; a directory whose log was removed is still owned.
TEST_F(RunLockTest, ADirectoryIsKnownByItself) {
  const auto mine = lock();
  fs::remove(folder + "/log.txt");
  EXPECT_EQ(refusal(), in_use_by(owner()));
  const std::string original = folder;
  folder += "_copy";
  fs::copy(original, folder);
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(said.empty());
  fs::remove_all(folder);
  folder = original;
  EXPECT_EQ(loss(*mine), "");
}

// The lock is free, because hosts do not see each other's locks.
TEST_F(RunLockTest, AHostThatGivesSignsIsNotDisturbed) {
  for (const bool locks : {true, false}) {
    with_locks = locks;
    give_sign(1);
    std::atomic<bool> over = false;
    std::thread there([&] {
      for (int number = 2; !over; ++number) {
        give_sign(number);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
    const std::string why = refusal();
    over = true;
    there.join();
    EXPECT_EQ(why, in_use_by("process 17 on there"));
    EXPECT_TRUE(sign().starts_with("there "));
  }
}

// The process was suspended, and another host took its directory: the process notices this by
// itself and when it is asked, stays replaced after the other one has ended, and does not touch the
// files of others.
TEST_F(RunLockTest, AReplacedRunNotices) {
  auto asked = lock();
  give_sign(1);
  const std::string why = "this run does not own the run directory '" + folder +
                          "' any more: the run (process 17 on there) has taken it over";
  EXPECT_EQ(loss(*asked), why);
  EXPECT_TRUE(asked->lost());
  fs::remove(folder + "/in_use");
  EXPECT_EQ(loss(*asked), why);
  asked.reset();

  auto looking = lock();
  give_sign(1);
  const double until = now_seconds() + 20;
  while (!looking->lost() && now_seconds() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(loss(*looking), why);
  looking.reset();
  EXPECT_EQ(sign(), "there 17 1");
}

TEST_F(RunLockTest, ARunWithoutItsFileIsReplaced) {
  const auto mine = lock();
  fs::remove(folder + "/in_use");
  EXPECT_NE(loss(*mine).find("in_use' is gone"), std::string::npos) << loss(*mine);
}

TEST_F(RunLockTest, NothingElseIsFollowedOrOverwritten) {
  const std::string target = folder + "/target";
  std::ofstream(target) << "precious";
  fs::create_symlink(target, folder + "/in_use");
  EXPECT_EQ(refusal(), "'" + folder + "/in_use' is a link, not a file");
  fs::remove(folder + "/in_use");
  fs::create_directory(folder + "/in_use");
  EXPECT_EQ(refusal(), "'" + folder + "/in_use' is a folder, not a file");
  EXPECT_EQ(fs::file_size(target), 8u);
}

// Hosts without locks start at the same time, in a directory that a dead process left: one of them
// owns the directory at the end, and each of the others has been informed.
TEST_F(RunLockTest, OneOfManyOwns) {
  with_locks = false;
  for (int round = 0; round < 5; ++round) {
    give_sign(3);
    constexpr int kHosts = 6;
    std::vector<std::unique_ptr<RunLock>> locks(kHosts);
    std::vector<std::thread> hosts;
    for (int i = 0; i < kHosts; ++i)
      hosts.emplace_back([&, i] {
        RunLock::Options own = options();
        own.host = "host" + std::to_string(i);
        own.say = {};
        try {
          locks[static_cast<std::size_t>(i)] =
              std::make_unique<RunLock>(folder, folder + "/log.txt", own);
        } catch (const StorageError&) {
        }
      });
    for (std::thread& host : hosts) host.join();
    int owners = 0;
    for (const auto& one : locks) owners += one && loss(*one).empty();
    EXPECT_EQ(owners, 1);
    locks.clear();
    fs::remove(folder + "/in_use");
  }
}

}  // namespace
}  // namespace choir
