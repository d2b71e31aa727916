#include "choir/device/offload_memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

constexpr std::size_t kBytes = (std::size_t{1} << 20) + 100;

std::int64_t entries_of(const std::string& directory) {
  return std::distance(std::filesystem::directory_iterator(directory),
                       std::filesystem::directory_iterator());
}

std::string refusal(std::size_t bytes, const std::string& directory) {
  CpuDevice cpu;
  try {
    const OffloadMemory memory = OffloadMemory::in_file(cpu, bytes, directory);
  } catch (const StorageError& error) {
    return describe(error);
  }
  return "";
}

TEST(OffloadMemory, FileIsZeroAndSeenBothWays) {
  const test::TemporaryDirectory folder;
  const std::string directory = folder.path() + "/made/when/missing";
  CpuDevice cpu;
  const OffloadMemory memory = OffloadMemory::in_file(cpu, kBytes, directory);
  EXPECT_EQ(memory.place(), MemoryPlace::file);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + kBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(entries_of(directory), 0) << "a file without a name";
  std::vector<std::byte> mine(1000), back(1000);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::byte>(i * 7 + 1);
  memory.write(mine.data(), 5000, mine.size());
  EXPECT_TRUE(std::equal(mine.begin(), mine.end(), memory.data() + 5000));
  memory.data()[5001] = std::byte{99};
  memory.rest();
  memory.read(back.data(), 5000, back.size());
  mine[1] = std::byte{99};
  EXPECT_EQ(mine, back);
  EXPECT_THROW(memory.read(back.data(), kBytes - 10, back.size()), StorageError);
}

TEST(OffloadMemory, HostMemoryIsZeroAndMoves) {
  CpuDevice cpu;
  OffloadMemory memory = OffloadMemory::on_host(cpu, kBytes);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + kBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  memory.data()[7] = std::byte{1};
  const OffloadMemory other = std::move(memory);
  EXPECT_EQ(other.data()[7], std::byte{1});
  EXPECT_EQ(other.place(), MemoryPlace::host);
}

TEST(OffloadMemory, PlansTakeNothing) {
  NullDevice null;
  constexpr std::size_t kHuge = std::size_t{1} << 50;
  const OffloadMemory file = OffloadMemory::in_file(null, kHuge, "/proc/no/such/place");
  const OffloadMemory host = OffloadMemory::on_host(null, kHuge);
  EXPECT_EQ(file.bytes(), kHuge);
  EXPECT_EQ(host.bytes(), kHuge);
}

TEST(OffloadMemory, SpaceIsTakenAtTheStartOrRefusedInWords) {
  const test::TemporaryDirectory folder;
  const std::string full = refusal(std::size_t{1} << 50, folder.path());
  EXPECT_NE(full.find("cannot reserve 1024.0 TiB ("), std::string::npos) << full;
  EXPECT_NE(full.find("free) for a file in " + folder.path()), std::string::npos) << full;
  EXPECT_NE(full.find("No space left on device"), std::string::npos) << full;
  EXPECT_NE(full.find("set parallel.offload_dir"), std::string::npos) << full;
  EXPECT_EQ(entries_of(folder.path()), 0);
  const std::string nowhere = refusal(kBytes, "/proc/no/such/place");
  EXPECT_NE(nowhere.find("cannot make a file in /proc/no/such/place"), std::string::npos);

  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string limited = refusal(kBytes, folder.path());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(limited.find("files are limited to 4.0 KiB (ulimit -f)"), std::string::npos) << limited;
}

TEST(OffloadMemory, KnowsFileSystemsInMemory) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  EXPECT_TRUE(is_memory_file_system("/dev/shm"));
  EXPECT_FALSE(is_memory_file_system("/proc"));
}

}  // namespace
}  // namespace choir
