#include "src/comm/node/node_topology.hpp"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace choir {

NodeMap::NodeMap(const std::vector<int>& node_of_rank) {
  std::unordered_map<int, std::size_t> known;
  for (int rank = 0; rank < static_cast<int>(node_of_rank.size()); ++rank) {
    const auto [found, fresh] =
        known.emplace(node_of_rank[static_cast<std::size_t>(rank)], members_.size());
    const std::size_t node = found->second;
    if (fresh) members_.emplace_back();
    node_.push_back(static_cast<int>(node));
    place_.push_back(static_cast<int>(members_[node].size()));
    members_[node].push_back(rank);
    most_ = std::max(most_, static_cast<int>(members_[node].size()));
  }
}

std::vector<int> NodeMap::places_served(int rank) const {
  std::vector<int> places;
  for (int place = 0; place < most_; ++place)
    if (partner(node_of(rank), place) == rank) places.push_back(place);
  return places;
}

bool NodeMap::continues_tree() const {
  const std::size_t each = members_.front().size();
  if (nodes() > 1 && !std::has_single_bit(each)) return false;
  for (int node = 0; node < nodes(); ++node) {
    const std::vector<int>& here = on(node);
    const bool last = node + 1 == nodes();
    if (last ? here.size() > each : here.size() != each) return false;
    if (here.back() - here.front() + 1 != static_cast<int>(here.size())) return false;
    if (here.front() != node * static_cast<int>(each)) return false;
  }
  return true;
}

NodeRounds::NodeRounds(int nodes, bool in_tree) : nodes_(nodes) {
  int left = nodes;
  for (int factor = 2; left > 1;) {
    if (factor > 2 && in_tree) factor = left;
    if (left % factor != 0) {
      ++factor;
      continue;
    }
    radices_.push_back(factor);
    left /= factor;
  }
  if (radices_.empty()) radices_.push_back(1);
  int stride = 1;
  for (const int radix : radices_) {
    strides_.push_back(stride);
    stride *= radix;
  }
  owners_.resize(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node)
    owners_[static_cast<std::size_t>(held(node, count()).first)] = node;
}

int NodeRounds::digit(int node, int round) const {
  return node / strides_[static_cast<std::size_t>(round)] % radix(round);
}

int NodeRounds::peer(int node, int round, int digit) const {
  return node + (digit - this->digit(node, round)) * strides_[static_cast<std::size_t>(round)];
}

NodeRounds::Slices NodeRounds::held(int node, int rounds) const {
  Slices slices{0, nodes_};
  for (int round = 0; round < rounds; ++round) {
    slices.count /= radix(round);
    slices.first += digit(node, round) * slices.count;
  }
  return slices;
}

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
