#include "src/comm/node/node_map.hpp"

#include <gtest/gtest.h>

#include <map>

namespace choir::test {
namespace {

using Ranks = std::vector<int>;

TEST(NodeMap, NumbersNodesByTheirLowestRanks) {
  const NodeMap map({7, 3, 7, 3, 3});
  EXPECT_EQ(map.nodes(), 2);
  EXPECT_EQ(map.most_on_a_node(), 3);
  EXPECT_EQ(map.on(0), (Ranks{0, 2}));
  EXPECT_EQ(map.on(1), (Ranks{1, 3, 4}));
  EXPECT_EQ(map.node_of(3), 1);
  EXPECT_EQ(map.place_of(3), 1);
  EXPECT_EQ(map.places_served(0), (Ranks{0, 2})) << "the third place goes around";
  EXPECT_EQ(map.ranks_served(0), (Ranks{1, 4}));
  EXPECT_EQ(map.ranks_served(4), (Ranks{}));
}

// Every place has one rank on each node that works for it, and every rank one on each other node.
TEST(NodeMap, EverybodyIsServedOnce) {
  for (const Ranks& nodes : {Ranks{0, 0, 1, 1}, Ranks{0, 0, 0, 1}, Ranks{0, 1, 2, 0, 1, 0, 0}}) {
    const NodeMap map(nodes);
    std::map<std::pair<int, int>, int> of_place, of_rank;
    for (int rank = 0; rank < map.ranks(); ++rank) {
      for (const int place : map.places_served(rank)) ++of_place[{map.node_of(rank), place}];
      for (const int other : map.ranks_served(rank)) ++of_rank[{map.node_of(rank), other}];
    }
    EXPECT_EQ(of_place.size(), static_cast<std::size_t>(map.nodes() * map.most_on_a_node()));
    EXPECT_EQ(of_rank.size(), static_cast<std::size_t>(map.ranks() * (map.nodes() - 1)));
    for (const auto& [key, times] : of_place) EXPECT_EQ(times, 1);
    for (const auto& [key, times] : of_rank) EXPECT_EQ(times, 1);
  }
}

TEST(NodeMap, KnowsWhetherNodesAreBranchesOfTheTree) {
  for (const Ranks& nodes : {Ranks{0, 0, 1, 1}, Ranks{0, 1, 2}, Ranks{0, 0, 1}, Ranks{4, 4, 4},
                             Ranks{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}})
    EXPECT_TRUE(NodeMap(nodes).continues_tree()) << nodes.size();
  for (const Ranks& nodes :
       {Ranks{0, 1, 0, 1}, Ranks{0, 0, 0, 1}, Ranks{0, 1, 1}, Ranks{0, 0, 1, 2},
        Ranks{0, 0, 0, 1, 1, 1}, Ranks{0, 0, 0, 0, 1, 1, 2, 2}})
    EXPECT_FALSE(NodeMap(nodes).continues_tree()) << nodes.size();
}

}  // namespace
}  // namespace choir::test
