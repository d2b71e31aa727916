// Tests of the assignment of GPUs to ranks, with descriptions of other machines.
#include <gtest/gtest.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/comm/mesh/device_choice.hpp"

namespace choir {
namespace {

/// Two sockets, each a NUMA node, and a third node with memory only.
const NumaDistances kTwoSockets{{10, 21, 40}, {21, 10, 40}, {40, 40, 10}};

std::string uuid(int gpu) {
  return "GPU-" + std::to_string(gpu);
}

/// `gpus` GPUs, the first half on node 0.
std::vector<VisibleGpu> server(int gpus) {
  std::vector<VisibleGpu> list;
  for (int g = 0; g < gpus; ++g) list.push_back({uuid(g), g < gpus / 2 ? 0 : 1});
  return list;
}

std::vector<int> assign(const std::vector<GpuSeeker>& ranks, bool share = false) {
  return assign_gpus(ranks, kTwoSockets, "node7", share);
}

std::string complaint(const std::vector<GpuSeeker>& ranks) {
  try {
    assign(ranks);
  } catch (const DeckError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

TEST(AssignGpus, InOrderWhereRanksAreNotBound) {
  std::vector<GpuSeeker> ranks;
  for (int r = 0; r < 8; ++r) ranks.push_back({r, {0, 1}, server(8)});
  EXPECT_EQ(assign(ranks), (std::vector{0, 1, 2, 3, 4, 5, 6, 7}));
  ranks.resize(3);
  EXPECT_EQ(assign(ranks), (std::vector{0, 1, 2}));
}

TEST(AssignGpus, OfTheOwnSocketWhereTheyAre) {
  std::vector<GpuSeeker> ranks;
  for (int r = 0; r < 8; ++r) ranks.push_back({r, {r < 4 ? 1 : 0}, server(8)});
  EXPECT_EQ(assign(ranks), (std::vector{4, 5, 6, 7, 0, 1, 2, 3}));
  std::vector<GpuSeeker> turns;  // sockets in turn
  for (int r = 0; r < 8; ++r) turns.push_back({r, {r % 2}, server(8)});
  EXPECT_EQ(assign(turns), (std::vector{0, 4, 1, 5, 2, 6, 3, 7}));
}

// A rank that can have a near GPU must not lose it to one that cannot.
TEST(AssignGpus, TheSumOfDistancesIsSmallest) {
  const std::vector<GpuSeeker> ranks{{0, {0, 1}, server(2)}, {1, {0}, server(2)}};
  EXPECT_EQ(assign(ranks), (std::vector{1, 0}));
  // Three ranks of socket 0, one of socket 1: one of the three must cross.
  std::vector<GpuSeeker> four;
  for (int r = 0; r < 4; ++r) four.push_back({r, {r == 3 ? 1 : 0}, server(4)});
  EXPECT_EQ(assign(four), (std::vector{0, 1, 2, 3}));
}

TEST(AssignGpus, UnknownNodesCountAsNear) {
  std::vector<VisibleGpu> blind = server(2);
  for (VisibleGpu& gpu : blind) gpu.numa_node = -1;
  const std::vector<GpuSeeker> ranks{{0, {1}, blind}, {1, {0}, blind}};
  EXPECT_EQ(assign(ranks), (std::vector{0, 1}));
  const std::vector<GpuSeeker> nowhere{{0, {}, server(2)}, {1, {7}, server(2)}};
  EXPECT_EQ(assign_gpus(nowhere, {}, "node7", false), (std::vector{0, 1}));
}

// CUDA_VISIBLE_DEVICES gives one GPU to each rank: the index is 0 for all, but the cards differ.
TEST(AssignGpus, WhatEachRankIsAllowedToSee) {
  const std::vector<VisibleGpu> all = server(4);
  std::vector<GpuSeeker> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back({r, {0, 1}, {all[static_cast<std::size_t>(3 - r)]}});
  EXPECT_EQ(assign(ranks), (std::vector{0, 0, 0, 0}));
  // Rank 0 sees two GPUs, rank 1 only the first of them: there is one solution.
  EXPECT_EQ(assign({{0, {0}, {all[0], all[1]}}, {1, {0}, {all[0]}}}), (std::vector{1, 0}));
}

TEST(AssignGpus, TwoRanksOnOneAreRefusedWithTheirNames) {
  const std::vector<VisibleGpu> one{{uuid(5), 0}};
  EXPECT_EQ(complaint({{8, {0}, one}, {9, {0}, one}}),
            "node7: 2 ranks for 1 GPU(s): ranks 8, 9 on GPU-5 | start one rank per GPU (and check "
            "CUDA_VISIBLE_DEVICES), or let ranks share one with parallel.share_device=true");
  std::vector<GpuSeeker> many;
  for (int r = 0; r < 4; ++r) many.push_back({r, {0, 1}, server(2)});
  EXPECT_NE(complaint(many).find("4 ranks for 2 GPU(s): ranks 0, 1 on GPU-0; ranks 2, 3 on GPU-1"),
            std::string::npos)
      << complaint(many);
  // There are enough GPUs, but these two ranks may only see the same one.
  EXPECT_NE(complaint({{0, {0}, one}, {1, {0}, one}, {2, {0}, server(4)}}).find("ranks 0, 1 on"),
            std::string::npos);
}

TEST(AssignGpus, SharedEvenlyWhereThatIsAllowed) {
  std::vector<GpuSeeker> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back({r, {0, 1}, server(2)});
  EXPECT_EQ(assign(ranks, true), (std::vector{0, 0, 1, 1}));
  ranks.push_back({4, {0, 1}, server(2)});
  std::vector<int> users(2, 0);
  for (const int place : assign(ranks, true)) ++users[static_cast<std::size_t>(place)];
  EXPECT_EQ(std::max(users[0], users[1]), 3);
  // Nearness does not make two ranks share a GPU if each could have its own.
  EXPECT_EQ(assign({{0, {0}, server(2)}, {1, {0}, server(2)}}, true), (std::vector{0, 1}));
}

// The cost is compared with that of every permutation.
TEST(AssignGpus, AgainstEveryPermutation) {
  for (int trial = 0; trial < 40; ++trial) {
    NumaDistances distances(5, std::vector<int>(5));
    std::vector<VisibleGpu> gpus;
    std::vector<GpuSeeker> ranks;
    for (int a = 0; a < 5; ++a) {
      for (int b = 0; b < 5; ++b)
        distances[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] =
            10 + (a * 31 + b * 17 + trial * 13 + a * b * trial) % 37;
      gpus.push_back({uuid(a), a});
    }
    for (int r = 0; r < 5; ++r) ranks.push_back({r, {(r * 2 + trial) % 5}, gpus});
    const auto cost = [&](const std::vector<int>& places) {
      int sum = 0;
      for (std::size_t r = 0; r < 5; ++r)
        sum += distances[static_cast<std::size_t>(ranks[r].numa_nodes[0])]
                        [static_cast<std::size_t>(places[r])];
      return sum;
    };
    std::vector<int> order{0, 1, 2, 3, 4};
    int least = cost(order);
    while (std::next_permutation(order.begin(), order.end())) least = std::min(least, cost(order));
    EXPECT_EQ(cost(assign_gpus(ranks, distances, "h", false)), least) << "trial " << trial;
  }
}

// Slices of a card (MIG) have UUIDs of their own and the address of the card.
TEST(AssignGpus, SlicesOfOneCardAreSharing) {
  const auto rank = [](int number, std::vector<VisibleGpu> gpus) {
    return GpuSeeker{number, {0}, std::move(gpus)};
  };
  const VisibleGpu first{"MIG-1", 0, "0000:3b:00.0"}, second{"MIG-2", 0, "0000:3b:00.0"};
  const VisibleGpu other{"GPU-3", 0, "0000:86:00.0"};
  EXPECT_TRUE(share_a_card({rank(0, {first}), rank(1, {second})}, {0, 0}));
  EXPECT_TRUE(share_a_card({rank(0, {other, first}), rank(1, {other, second})}, {1, 1}));
  EXPECT_FALSE(share_a_card({rank(0, {other, first}), rank(1, {other, second})}, {0, 1}));
  EXPECT_TRUE(share_a_card({rank(0, {other}), rank(1, {other})}, {0, 0}));
  EXPECT_FALSE(share_a_card({rank(0, {{"a", 0, ""}}), rank(1, {{"b", 0, ""}})}, {0, 0}))
      << "unknown addresses";
}

TEST(AssignGpus, RanksThatSeeOnlyTheirOwnGpuAreWarned) {
  const auto seeing = [](int number, std::vector<int> gpus) {
    GpuSeeker seeker{number, {0}, {}};
    for (const int g : gpus) seeker.gpus.push_back({uuid(g), 0, "0000:0" + std::to_string(g)});
    return seeker;
  };
  const std::string warning = isolation_warning({seeing(0, {0}), seeing(1, {1})}, "node7");
  for (const char* part : {"node7", "each of 2 ranks", "--gpus-per-task", "--gpus-per-node"})
    EXPECT_NE(warning.find(part), std::string::npos) << part << " in " << warning;
  EXPECT_EQ(isolation_warning({seeing(0, {0, 1}), seeing(1, {0, 1})}, "node7"), "");
  EXPECT_EQ(isolation_warning({seeing(0, {0}), seeing(1, {0, 1})}, "node7"), "");
  EXPECT_EQ(isolation_warning({seeing(0, {0})}, "node7"), "") << "one rank";
  EXPECT_EQ(isolation_warning({seeing(0, {0}), seeing(1, {0})}, "node7"), "")
      << "a node with one GPU, which the ranks share";
}

}  // namespace
}  // namespace choir
