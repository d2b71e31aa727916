#pragma once
// The map of a group says which ranks share a node, and who of a node talks to whom on the others.
#include <vector>

namespace choir {

/// Local, pure. Ranks of a node have places 0, 1, ... in the order of their ranks. What place p of
/// a node sends elsewhere goes to the p-th rank there, counted around where that node has fewer.
class NodeMap {
 public:
  /// `node_of_rank`: any number that ranks of a node have in common. Nodes are then numbered by
  /// their lowest rank.
  explicit NodeMap(const std::vector<int>& node_of_rank);

  int ranks() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const { return place_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& on(int node) const { return members_[static_cast<std::size_t>(node)]; }
  bool has_place(int node, int place) const { return place < static_cast<int>(on(node).size()); }
  /// Ranks of the fullest node: so many share the work of every node.
  int most_on_a_node() const { return most_; }
  int partner(int node, int place) const {
    const std::vector<int>& there = on(node);
    return there[static_cast<std::size_t>(place) % there.size()];
  }
  /// The places of other nodes that this rank works for: those whose partner on its node it is.
  std::vector<int> places_served(int rank) const;
  /// Whether trees over the ranks of each node, and then one over nodes, add in the order of one
  /// tree over all ranks (tree_reduce.hpp): consecutive ranks, a power of two on every node but the
  /// last, which may have fewer.
  bool continues_tree() const;

 private:
  std::vector<int> node_, place_;
  std::vector<std::vector<int>> members_;
  int most_ = 0;
};

}  // namespace choir
