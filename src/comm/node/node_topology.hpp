#pragma once
// The topology of a group that spans nodes: which ranks share a node and which ranks of different
// nodes are partners (NodeMap), the rounds in which nodes divide their work (NodeRounds), and the
// byte ranges of the slices on which nodes work in rounds (NodeLanes). The ranks that have the same
// index on each node form a lane.

#include <cstddef>
#include <vector>

#include "src/comm/communicator_parts.hpp"

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

/// Rounds of n nodes that work on n slices. In a round a node communicates only with the nodes that
/// differ from it in one digit of its number, and keeps the slices of the nodes that still agree
/// with it. If n is a power of two this takes log2 n messages, otherwise the sum over its factors
/// of the factor less one. The same rounds in reverse order gather the slices of all nodes. Local,
/// pure.
class NodeRounds {
 public:
  /// With `in_tree` the sums of all rounds are branches of one tree over all nodes
  /// (tree_reduce.hpp); for this, the odd part of n is one round.
  NodeRounds(int nodes, bool in_tree);

  /// Number of rounds, at least one; a single node has a round with itself.
  int count() const { return static_cast<int>(radices_.size()); }
  /// Number of nodes that communicate with each other in a round, in the order of their digits.
  int radix(int round) const { return radices_[static_cast<std::size_t>(round)]; }
  int digit(int node, int round) const;
  int peer(int node, int round, int digit) const;

  struct Slices {
    int first, count;
  };
  /// The slices that a node works on after `rounds` rounds; after all rounds its own slice. Slices
  /// are ordered such that these are contiguous.
  Slices held(int node, int rounds) const;
  /// The node that owns a slice.
  int owner(int slice) const { return owners_[static_cast<std::size_t>(slice)]; }

 private:
  int nodes_;
  std::vector<int> radices_, strides_, owners_;
};

/// The data of a lane: slices of all nodes, one after another.
struct NodeLane {
  std::size_t part;  ///< index among the places that the rank serves
  int place;
  std::byte* slices;
  std::size_t element;  ///< bytes
  std::size_t granule;  ///< elements that are not divided
  std::size_t count;    ///< elements of all slices, or of each slice if they are blocks of ranks
  bool blocks;
  std::size_t first = 0;  ///< for slices that are not blocks: elements of the call before them
};

/// Local, pure.
class NodeLanes {
 public:
  /// `places` are the places that a rank serves; `in_tree` is passed to NodeRounds.
  NodeLanes(const NodeMap& map, const std::vector<int>& places, bool in_tree);

  const NodeRounds& rounds() const { return rounds_; }
  /// Bytes of a lane before a slice.
  std::size_t begin_of(const NodeLane& lane, int slice) const;
  Chunk bytes_of(const NodeLane& lane, NodeRounds::Slices slices) const;
  /// The slices that a node holds after `rounds` rounds.
  Chunk held(const NodeLane& lane, int node, int rounds) const {
    return bytes_of(lane, rounds_.held(node, rounds));
  }

 private:
  int nodes_;
  NodeRounds rounds_;
  std::vector<std::vector<std::size_t>> blocks_before_;  // of each place, by slice
};

}  // namespace choir
