#pragma once
// Byte ranges of the slices on which nodes work in rounds. The ranks that have the same index on
// each node form a lane.
#include <cstddef>
#include <vector>

#include "choir/comm/chunks.hpp"
#include "src/comm/node/node_map.hpp"
#include "src/comm/node/node_rounds.hpp"

namespace choir {

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
