#include "choir/core/capped_text.hpp"

#include <gtest/gtest.h>

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

// A folder can be opened, but not read.
TEST(CappedText, WhatCannotBeReadIsSaid) {
  std::ifstream file("/", std::ios::binary);
  ASSERT_TRUE(file.is_open());
  EXPECT_EQ(read_capped(file, 1).fault, "cannot be read");
}

}  // namespace
}  // namespace choir
