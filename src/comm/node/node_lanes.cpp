#include "src/comm/node/node_lanes.hpp"

namespace choir {

NodeLanes::NodeLanes(const NodeMap& map, const std::vector<int>& places, bool in_tree)
    : nodes_(map.nodes()), rounds_(map.nodes(), in_tree) {
  for (const int place : places) {
    // A node with fewer ranks has no block of this place.
    std::vector<std::size_t>& before = blocks_before_.emplace_back(1, 0);
    for (int slice = 0; slice < nodes_; ++slice)
      before.push_back(before.back() + (map.has_place(rounds_.owner(slice), place) ? 1 : 0));
  }
}

std::size_t NodeLanes::begin_of(const NodeLane& lane, int slice) const {
  const std::size_t before =
      lane.blocks ? blocks_before_[lane.part][static_cast<std::size_t>(slice)] * lane.count
                  : share_of(lane.count, nodes_, slice, lane.granule).offset;
  return before * lane.element;
}

Chunk NodeLanes::bytes_of(const NodeLane& lane, NodeRounds::Slices slices) const {
  const std::size_t first = begin_of(lane, slices.first);
  return {first, begin_of(lane, slices.first + slices.count) - first};
}

}  // namespace choir
