#include "src/comm/node/node_windows.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

struct RoomLocks : testing::Test {
  RoomLocks() {
    folder = testing::TempDir() + "choir_room_XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) ADD_FAILURE() << folder;
    path = folder + "/lock";
  }
  ~RoomLocks() override { fs::remove_all(folder); }
  std::string refusal() {
    try {
      const RoomLock lock(path, 0.05, [&] { ++idle; });
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  }

  std::string folder, path;
  int idle = 0;
};

TEST_F(RoomLocks, OneAtATime) {
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(idle, 0);
  {
    const RoomLock mine(path, 1, [] {});
    EXPECT_EQ(refusal(), "the lock '" + path +
                             "' of this node's shared memory is held by process " +
                             std::to_string(getpid()) + " (test_unit) for more than 50 ms");
    EXPECT_GT(idle, 0);
  }
  EXPECT_EQ(refusal(), "");
}

TEST_F(RoomLocks, NothingElseIsLocked) {
  const std::string target = folder + "/target";
  fs::create_symlink(target, path);
  EXPECT_NE(refusal().find("is a link"), std::string::npos) << refusal();
  EXPECT_FALSE(fs::exists(target));
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_NE(refusal().find("cannot be opened"), std::string::npos) << refusal();
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("is a pipe"), std::string::npos) << refusal();
  fs::remove(path);
  std::ofstream(path).put('x');
  if (chown(path.c_str(), 65534, 65534) == 0) {  // only root may do this
    EXPECT_NE(refusal().find("belongs to user 65534"), std::string::npos) << refusal();
  }
  path = folder + "/no/such/folder";
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace choir
