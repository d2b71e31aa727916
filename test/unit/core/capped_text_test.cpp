#include "src/core/file.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace choir {
namespace {

TEST(CappedText, WholeUpToTheLimit) {
  const std::string full(std::size_t{1} << 20, 'a');
  for (const std::string& text : {std::string(), std::string("one\ntwo"), full}) {
    std::istringstream file(text);
    const CappedText read = read_capped(file, 1);
    EXPECT_EQ(read.text, text);
    EXPECT_EQ(read.fault, "");
  }
  std::istringstream more(full + "b");
  EXPECT_EQ(read_capped(more, 1).fault, "has more than 1 MiB");
}

TEST(CappedText, ADeviceEnds) {
  std::ifstream file("/dev/zero", std::ios::binary);
  EXPECT_EQ(read_capped(file, 2).fault, "has more than 2 MiB");
}

// A folder can be opened, but not be read.
TEST(CappedText, WhatCannotBeReadIsSaid) {
  std::ifstream file("/", std::ios::binary);
  ASSERT_TRUE(file.is_open());
  EXPECT_EQ(read_capped(file, 1).fault, "cannot be read");
}

// Its 20 GB are a hole: only the size is read.
TEST(CappedText, AFileIsJudgedByItsSize) {
  const std::string path = testing::TempDir() + fmt::format("capped_{}", ::getpid());
  std::ofstream(path) << "text";
  EXPECT_EQ(read_capped_file(path, 1).text, "text");
  EXPECT_EQ(file_excess(path, 1), "");
  ASSERT_EQ(::truncate(path.c_str(), 20'000'000'000), 0);
  EXPECT_EQ(read_capped_file(path, 64).fault, "has 20000000000 bytes, more than 64 MiB");
  EXPECT_EQ(file_excess(path, 64), "has 20000000000 bytes, more than 64 MiB");
  ::unlink(path.c_str());
  EXPECT_EQ(read_capped_file(path, 1).fault, "cannot be read: No such file or directory");
  EXPECT_EQ(read_capped_file("/", 1).fault, "is a folder, not a file");
  EXPECT_EQ(read_capped_file("/dev/zero", 1).fault, "is a device, not a file");
  EXPECT_EQ(read_capped_file("/dev/zero", 1, Pipes::read).fault, "has more than 1 MiB");
  EXPECT_NE(read_capped_file("/proc/self/status", 1).text, "");  // size 0, but not empty
}

}  // namespace
}  // namespace choir
