#include "src/comm/node/node_topology.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <string>

#include "src/comm/node/node_topology.hpp"

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
}

// Every place is served by one rank of each node.
TEST(NodeMap, EverybodyIsServedOnce) {
  for (const Ranks& nodes : {Ranks{0, 0, 1, 1}, Ranks{0, 0, 0, 1}, Ranks{0, 1, 2, 0, 1, 0, 0}}) {
    const NodeMap map(nodes);
    std::map<std::pair<int, int>, int> of_place;
    for (int rank = 0; rank < map.ranks(); ++rank)
      for (const int place : map.places_served(rank)) ++of_place[{map.node_of(rank), place}];
    EXPECT_EQ(of_place.size(), static_cast<std::size_t>(map.nodes() * map.most_on_a_node()));
    for (const auto& [key, times] : of_place) EXPECT_EQ(times, 1);
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

/// Expected order of a sum of terms in a tree.
std::string tree_of(const std::vector<std::string>& terms, std::size_t first, std::size_t count) {
  if (count == 1) return terms[first];
  const std::size_t left = std::bit_floor(count - 1);
  return "(" + tree_of(terms, first, left) + "+" + tree_of(terms, first + left, count - left) + ")";
}

/// Plays the rounds and keeps, in words, the term that each node has of each slice: first its own,
/// in the end the sum of all. Afterwards the same backwards, for the nodes that have the sum of
/// each slice.
void play_rounds(int nodes, bool in_tree) {
  const NodeRounds rounds(nodes, in_tree);
  const auto n = static_cast<std::size_t>(nodes);
  std::vector<std::string> terms(n);
  for (std::size_t i = 0; i < n; ++i) terms[i] = std::to_string(i);
  std::vector<std::vector<std::string>> sums(n);
  for (std::size_t i = 0; i < n; ++i) sums[i].assign(n, terms[i]);
  const auto each_held = [](NodeRounds::Slices held, const auto& f) {
    for (int s = held.first; s < held.first + held.count; ++s) f(static_cast<std::size_t>(s));
  };
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  for (int r = 0; r < rounds.count(); ++r) {
    auto next = sums;
    for (int node = 0; node < nodes; ++node) {
      ASSERT_EQ(rounds.peer(node, r, rounds.digit(node, r)), node);
      each_held(rounds.held(node, r + 1), [&](std::size_t slice) {
        std::vector<std::string> met;
        for (int d = 0; d < rounds.radix(r); ++d)
          met.push_back(sums[at(rounds.peer(node, r, d))][slice]);
        next[at(node)][slice] = tree_of(met, 0, met.size());
      });
    }
    sums = next;
  }
  std::vector<std::vector<bool>> known(n, std::vector<bool>(n, false));
  for (int node = 0; node < nodes; ++node) {
    const NodeRounds::Slices own = rounds.held(node, rounds.count());
    ASSERT_EQ(own.count, 1);
    ASSERT_EQ(rounds.owner(own.first), node);
    if (in_tree) {
      ASSERT_EQ(sums[at(node)][at(own.first)], tree_of(terms, 0, n)) << nodes;
    }
    known[at(node)][at(own.first)] = true;
  }
  for (int r = rounds.count() - 1; r >= 0; --r)
    for (int node = 0; node < nodes; ++node)
      for (int d = 0; d < rounds.radix(r); ++d)
        each_held(rounds.held(rounds.peer(node, r, d), r + 1),
                  [&](std::size_t slice) { known[at(node)][slice] = true; });
  for (const auto& of_node : known) ASSERT_EQ(of_node, std::vector<bool>(n, true)) << nodes;
}

TEST(NodeRounds, AddAndPutTogetherWhatAllHave) {
  for (const int nodes : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 30})
    for (const bool in_tree : {false, true}) play_rounds(nodes, in_tree);
}

TEST(NodeRounds, AreFewAndMoveNoByteTwice) {
  const auto count = [](int nodes, bool in_tree) {
    const NodeRounds rounds(nodes, in_tree);
    int messages = 0, slices = 0;
    for (int r = 0; r < rounds.count(); ++r) {
      messages += rounds.radix(r) - 1;
      slices += (rounds.radix(r) - 1) * rounds.held(0, r + 1).count;
    }
    EXPECT_EQ(slices, nodes - 1) << "the fewest there can be";
    return messages;
  };
  EXPECT_EQ(count(1024, true), 10);
  EXPECT_EQ(count(1250, false), 1 + 4 * 4);
  EXPECT_EQ(count(1250, true), 1 + 624) << "one tree";
  EXPECT_EQ(count(1009, false), 1008) << "a prime";
}

}  // namespace
}  // namespace choir::test
