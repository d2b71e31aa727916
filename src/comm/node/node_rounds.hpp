#pragma once
// Division of the work of n nodes on n slices into few rounds with the fewest bytes.
#include <vector>

namespace choir {

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

}  // namespace choir
