#include "src/lab/tune/tune.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace choir {
namespace {

namespace fs = std::filesystem;

/// A machine, described by files.
class FakeSystem {
 public:
  FakeSystem() { fs::create_directories(root_); }
  ~FakeSystem() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_ = (fs::path(::testing::TempDir()) / "choir_step_probe_system").string();
};

TEST(MemoryLeft, IsTheLeastOfSystemAndGroups) {
  const FakeSystem system;
  EXPECT_EQ(memory_left(system.root()), 0);  // no file has a limit
  system.write("/proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 2000 kB\n");
  EXPECT_EQ(memory_left(system.root()), 2000 * 1024);
  // A job of SLURM: the limit is in a group above that of the process.
  system.write("/proc/self/cgroup", "0::/job_1/step_0\n");
  system.write("/sys/fs/cgroup/job_1/step_0/memory.max", "max\n");
  system.write("/sys/fs/cgroup/job_1/memory.max", "1000000\n");
  system.write("/sys/fs/cgroup/job_1/memory.current", "400000\n");
  EXPECT_EQ(memory_left(system.root()), 600000);
  system.write("/sys/fs/cgroup/job_1/memory.stat", "anon 5\ninactive_file 100000\nslab 3\n");
  EXPECT_EQ(memory_left(system.root()), 700000);
  // Version 1 of control groups, and one without a limit that matters.
  system.write("/proc/self/cgroup", "5:cpu:/\n4:memory:/a\n");
  system.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500000\n");
  system.write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "450000\n");
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_left(system.root()), 50000);
}

}  // namespace
}  // namespace choir
