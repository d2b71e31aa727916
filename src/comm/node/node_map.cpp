#include "src/comm/node/node_map.hpp"

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

}  // namespace choir
