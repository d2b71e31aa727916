// Tests of NCCL's share of a GPU, against what others measured.
#include "src/comm/nccl_needs.hpp"

#include <gtest/gtest.h>

#include <bit>

namespace choir {
namespace {

constexpr double kGb = 1e9, kMib = 1 << 20;

// Parts of 19 of 132 multiprocessors became 32 where messages were sent, and the kernels of five
// communicators needed up to 160.
TEST(NcclNeeds, KernelsOfAllCommunicatorsFitOnTheCardTogether) {
  for (const int multiprocessors : {108, 132, 144, 148})
    for (int all = 2; all <= 12; ++all) {
      const int blocks = nccl_blocks(multiprocessors, all);
      EXPECT_GE(blocks, 1);
      const auto rounded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(blocks)));
      EXPECT_LE(all * rounded, multiprocessors * 3 / 4) << all << " communicators";
      EXPECT_GT(4 * all * blocks, multiprocessors) << "a third at least, of what they may take";
    }
  EXPECT_EQ(nccl_blocks(132, 5), 16);
  EXPECT_EQ(nccl_blocks(4, 9), 1);
}

TEST(NcclNeeds, OneCommunicatorLeavesTheChoiceToNccl) {
  EXPECT_EQ(nccl_blocks(132, 1), 32);
  EXPECT_EQ(nccl_blocks(4, 1), 32);
}

// NVIDIA/nccl issue 1685: 8 H100 took 1.06 GB before and 4.34 GB after the first all-to-all.
TEST(NcclNeeds, MemoryIsThatOfEightCards) {
  NcclUse use{.ranks = 8, .blocks = 32};
  EXPECT_NEAR(static_cast<double>(nccl_bytes(use)) / kGb, 1.06, 0.1);
  use.peers = 7;
  EXPECT_NEAR(static_cast<double>(nccl_bytes(use)) / kGb, 4.34, 0.1);
}

TEST(NcclNeeds, MemoryFollowsFromTheUse) {
  EXPECT_EQ(nccl_bytes({.ranks = 1, .peers = 3}), 0u);
  const NcclUse two{.ranks = 2, .blocks = 16};
  const double ring = static_cast<double>(nccl_bytes(two)) / kMib;
  EXPECT_GE(ring, 16 * 12);
  EXPECT_LE(ring, 16 * 12 + 16);
  NcclUse more = two;
  more.peers = 1, more.blocks = 19;  // 32 channels for messages
  EXPECT_GE(static_cast<double>(nccl_bytes(more)) / kMib, 19 * 12 + 32 * 12);
  more = two;
  more.nodes = 2;
  EXPECT_GT(nccl_bytes(more), nccl_bytes(two));
  NcclUse card{.ranks = 8, .blocks = 16, .multicast = false};
  const std::size_t without = nccl_bytes(card);
  card.multicast = true;
  EXPECT_GT(nccl_bytes(card), without);
}

// On an H100 a block of NCCL is a multiple of 512 MiB, so a bucket of 300 MiB is none.
TEST(NcclNeeds, OnlyBlocksThatAreHardlyRoundedUpAreNccls) {
  const std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(nccl_granularity(8), 2 * mib);
  EXPECT_EQ(nccl_granularity(9), 512 * mib);
  EXPECT_FALSE(is_block_of_nccl(0, 512 * mib));
  EXPECT_FALSE(is_block_of_nccl(300 * mib, 512 * mib));
  EXPECT_TRUE(is_block_of_nccl(500 * mib, 512 * mib));
  EXPECT_FALSE(is_block_of_nccl(520 * mib, 512 * mib));
  EXPECT_TRUE(is_block_of_nccl(4 * 1024 * mib + 1, 512 * mib));
  EXPECT_TRUE(is_block_of_nccl(17 * mib, 2 * mib));
  EXPECT_FALSE(is_block_of_nccl(mib, 2 * mib));
  EXPECT_EQ(nccl_rounding(500 * mib, 512 * mib), 12 * mib);
  EXPECT_EQ(nccl_rounding(512 * mib, 512 * mib), 0u);
  EXPECT_EQ(nccl_rounding(300 * mib, 512 * mib), 0u) << "none of NCCL's";
}

}  // namespace
}  // namespace choir
