#pragma once
// The map of a group: which ranks share a node, and which ranks of different nodes are partners.
#include <vector>

namespace choir {

/// Ranks of a node have places 0, 1, ... in the order of their ranks. The rank at place p of a node
/// sends to the rank at place p of another node, modulo the number of ranks there. Local, pure.
class NodeMap {
 public:
  /// `node_of_rank` has any number that is equal for the ranks of a node. Nodes are renumbered by
  /// their lowest rank.
  explicit NodeMap(const std::vector<int>& node_of_rank);

  int ranks() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const { return place_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& on(int node) const { return members_[static_cast<std::size_t>(node)]; }
  bool has_place(int node, int place) const { return place < static_cast<int>(on(node).size()); }
  /// Ranks of the fullest node, which is the number of lanes.
  int most_on_a_node() const { return most_; }
  int partner(int node, int place) const {
    const std::vector<int>& there = on(node);
    return there[static_cast<std::size_t>(place) % there.size()];
  }
  /// The places of other nodes whose partner on its node is this rank.
  std::vector<int> places_served(int rank) const;
  /// True if trees over the ranks of each node followed by one over nodes add in the order of one
  /// tree over all ranks (tree_reduce.hpp): ranks are consecutive, with a power of two on every
  /// node but the last, which may have fewer.
  bool continues_tree() const;

 private:
  std::vector<int> node_, place_;
  std::vector<std::vector<int>> members_;
  int most_ = 0;
};

}  // namespace choir
