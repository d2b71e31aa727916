// The report of a layout, as it is read.
#include "src/run/layout_report.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace choir {
namespace {

LayoutFacts facts(const Layout& layout, int rank, int ranks_per_node) {
  LayoutFacts f{.layout = layout,
                .rank = rank,
                .node_of_rank = nodes_of_ranks(layout.ranks(), ranks_per_node)};
  f.transport = {"node", "node", "mpi", "nccl"};
  f.traffic[static_cast<std::size_t>(Axis::tensor)] = {1234, 3.0 * 1024 * 1024, 0};
  f.traffic[static_cast<std::size_t>(Axis::data)] = {14, 512, 0};
  f.traffic[static_cast<std::size_t>(Axis::pipeline)] = {8, 2.5 * 1024, 0};
  return f;
}

TEST(LayoutReport, OneRank) {
  EXPECT_EQ(layout_report(facts(Layout(), 0, 1)), "layout: single rank");
}

// Tensor ranks are inside a node, stages are outermost.
TEST(LayoutReport, SixteenRanksOnFourNodes) {
  EXPECT_EQ(
      layout_report(facts(Layout(4, 1, 2, 2), 5, 4)),
      "layout: dp=2 tp=4 pp=2 cp=1 on 16 ranks, 4 nodes of 4, order tp-cp-dp-pp\n"
      "  axis ranks  groups                                crosses nodes transport  calls and "
      "bytes a step\n"
      "  tp       4  {0-3} {4-7} {8-11} {12-15}            no            node       1,234 x, "
      "3.0 MiB\n"
      "  dp       2  {0,4} {1,5} ... {11,15}               yes           mpi        14 x, 512 "
      "B\n"
      "  pp       2  {0,8} {1,9} ... {7,15}                yes           nccl       8 x, 2.5 "
      "KiB\n"
      "  rank 5 is\n"
      "    tp 1 of 4: previous rank 4, next rank 6\n"
      "    dp 1 of 2: previous rank 1, next rank 1\n"
      "    pp 0 of 2 stages: previous none, next rank 13");
}

// Three ranks per node: one of the four pairs is split; the last node is not full.
TEST(LayoutReport, NodesThatAreNotFull) {
  const LayoutFacts f = facts(Layout(2, 1, 4, 1), 7, 3);
  EXPECT_EQ(groups_across_nodes(f.layout, Axis::tensor, f.node_of_rank), 1);
  EXPECT_EQ(groups_across_nodes(f.layout, Axis::data, f.node_of_rank), 2);
  EXPECT_EQ(
      layout_report(f),
      "layout: dp=4 tp=2 pp=1 cp=1 on 8 ranks, 3 nodes of 2 to 3, order tp-cp-dp-pp\n"
      "  axis ranks  groups                                crosses nodes transport  calls and "
      "bytes a step\n"
      "  tp       2  {0,1} {2,3} {4,5} {6,7}               1 of them     node       1,234 x, "
      "3.0 MiB\n"
      "  dp       4  {0,2,4,6} {1,3,5,7}                   yes           mpi        14 x, 512 "
      "B\n"
      "  rank 7 is\n"
      "    tp 1 of 2: previous rank 6, next rank 6\n"
      "    dp 3 of 4: previous rank 5, next rank 1");
}

TEST(LayoutReport, AnotherOrder) {
  // Pipeline fastest: stages 0, 1, 2 are ranks 0, 1, 2 on one node; tensor ranks are 3 apart.
  const LayoutFacts f = facts(Layout(2, 1, 2, 3, "pp-tp-cp-dp"), 4, 6);
  EXPECT_EQ(groups_across_nodes(f.layout, Axis::pipeline, f.node_of_rank), 0);
  EXPECT_EQ(groups_across_nodes(f.layout, Axis::data, f.node_of_rank), 6);
  const std::string text = layout_report(f);
  EXPECT_NE(text.find("{0-2} {3-5} {6-8} {9-11}"), std::string::npos) << text;
  EXPECT_NE(text.find("{0,3} {1,4} ... {8,11}"), std::string::npos) << text;
  EXPECT_NE(text.find("pp 1 of 3 stages: previous rank 3, next rank 5"), std::string::npos) << text;
}

TEST(LayoutReport, ThousandsOfRanksFitInAHundredColumns) {
  LayoutFacts f = facts(Layout(8, 4, 64, 8), 16383, 8);
  f.traffic.fill({123456, 1023.9 * 1024 * 1024 * 1024, 0});
  std::istringstream text(layout_report(f));
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(lines, 2 + 4 + 1 + 4);
  EXPECT_NE(text.str().find("{0-7} {8-15} ... {16376-16383} "), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("pp 7 of 8 stages: previous rank 14335, next none"), std::string::npos)
      << text.str();
}

}  // namespace
}  // namespace choir
