#include "src/core/quantities.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace choir {
namespace {

TEST(Plural, OneThingAndMoreOfThem) {
  EXPECT_EQ(counted(1, "utterance"), "1 utterance");
  EXPECT_EQ(counted(0, "utterance"), "0 utterances");
  EXPECT_EQ(counted(1308, "micro-batch"), "1,308 micro-batches");
  EXPECT_EQ(counted(std::vector<int>(2).size(), "rank"), "2 ranks");
}

}  // namespace
}  // namespace choir
