#pragma once
// Slices that nodes work on in rounds, in bytes. The ranks that have the same place on each node
// are a lane.
#include <cstddef>
#include <vector>

#include "choir/comm/chunks.hpp"
#include "src/comm/node/node_map.hpp"
#include "src/comm/node/node_rounds.hpp"

namespace choir {

/// What a lane works on: slices of all nodes, one behind another.
struct NodeLane {
  std::size_t part;  ///< of the places that a rank serves
  int place;
  std::byte* slices;
  std::size_t element;  ///< bytes
  std::size_t granule;  ///< elements that stay together
  std::size_t count;    ///< elements of all slices, or of each where they are blocks of ranks
  bool blocks;
  std::size_t first = 0;  ///< otherwise: elements of the call before them
};

/// Local, pure.
class NodeLanes {
 public:
  /// `places`: those that a rank serves. `in_tree` as of NodeRounds.
  NodeLanes(const NodeMap& map, const std::vector<int>& places, bool in_tree);

  const NodeRounds& rounds() const { return rounds_; }
  /// Bytes of a lane before a slice.
  std::size_t begin_of(const NodeLane& lane, int slice) const;
  Chunk bytes_of(const NodeLane& lane, NodeRounds::Slices slices) const;
  /// What a node has after so many rounds.
  Chunk held(const NodeLane& lane, int node, int rounds) const {
    return bytes_of(lane, rounds_.held(node, rounds));
  }

 private:
  int nodes_;
  NodeRounds rounds_;
  std::vector<std::vector<std::size_t>> blocks_before_;  // of each place, by slice
};

}  // namespace choir
