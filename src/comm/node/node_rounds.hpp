#pragma once
// How n nodes share the work on n slices in few rounds, with the fewest bytes: in a round a node
// talks to those alone that differ from it in one digit of its number, and is left with the slices
// of those that it still agrees with. log2 n messages where n is a power of two, the sum of its
// factors less one each where it is not.
#include <vector>

namespace choir {

/// Local, pure. Backwards the same rounds put together what nodes have a slice each of.
class NodeRounds {
 public:
  /// `in_tree`: the sums of all rounds are branches of one tree over all nodes (tree_reduce.hpp),
  /// for which what is left of n without its powers of two is one round.
  NodeRounds(int nodes, bool in_tree);

  /// At least one, in which a single node is with itself.
  int count() const { return static_cast<int>(radices_.size()); }
  /// So many nodes talk to each other in a round, in the order of their digits.
  int radix(int round) const { return radices_[static_cast<std::size_t>(round)]; }
  int digit(int node, int round) const;
  int peer(int node, int round, int digit) const;

  struct Slices {
    int first, count;
  };
  /// What a node works on after so many rounds; after all of them its own slice. Slices stand in
  /// the order in which these are neighbours.
  Slices held(int node, int rounds) const;
  /// The node whose slice stands there.
  int owner(int slice) const { return owners_[static_cast<std::size_t>(slice)]; }

 private:
  int nodes_;
  std::vector<int> radices_, strides_, owners_;
};

}  // namespace choir
