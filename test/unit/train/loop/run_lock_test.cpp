// Who may write a run directory, where locks of hosts are seen or are not.
#include "src/train/loop/run_lock.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

struct RunLockTest : testing::Test {
  RunLockTest() { fs::create_directories(folder); }
  ~RunLockTest() override { fs::remove_all(folder); }
  std::unique_ptr<RunLock> lock() {
    return std::make_unique<RunLock>(
        folder, folder + "/log.txt",
        RunLock::Options{.host = "here",
                         .patience = 0.05,
                         .beat = 0.1,
                         .lease = 20,
                         .say = [&](const std::string& text) { said.push_back(text); }});
  }
  std::string refusal() {
    try {
      lock();
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

  std::string folder = testing::TempDir() + "choir_run_lock_" + std::to_string(::getpid());
  std::vector<std::string> said;
};

TEST_F(RunLockTest, GivesSignsAndTakesThemBack) {
  {
    const auto mine = lock();
    std::string first;
    while (first.empty()) first = sign();
    EXPECT_TRUE(first.starts_with("here " + std::to_string(::getpid()) + " ")) << first;
    while (sign() == first) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(refusal(), "another run is using the run directory '" + folder + "'");
  }
  EXPECT_FALSE(fs::exists(folder + "/in_use"));
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(said.empty());
}

// A host died and left its sign, and a lock for a while.
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
  EXPECT_NE(said[0].find("was left in use by there 17"), std::string::npos) << said[0];
  while (!sign().starts_with("here ")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// The lock is free, for hosts do not see each other's.
TEST_F(RunLockTest, AHostThatGivesSignsIsNotDisturbed) {
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
  EXPECT_EQ(why, "another run (there 17) is using the run directory '" + folder + "'");
  EXPECT_TRUE(sign().starts_with("there "));
}

}  // namespace
}  // namespace choir
