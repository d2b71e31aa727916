#include "choir/comm/heartbeat_board.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace choir {

struct HeartbeatBoard::Entry {
  std::atomic<std::int64_t> beats;
  std::int64_t world_rank;
  char phase[120];  // read while it may be written: a torn name does no harm in a report
};

HeartbeatBoard::HeartbeatBoard(Communicator& node, int world_rank)
    : memory_(node.allocate(sizeof(Entry))), ranks_(node.size()), me_(node.rank()) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  if (Entry* mine = entry(me_)) mine->world_rank = world_rank;
  node.barrier();
}

HeartbeatBoard::Entry* HeartbeatBoard::entry(int node_rank) const {
  return static_cast<Entry*>(memory_->block(node_rank));
}

void HeartbeatBoard::publish(const char* phase) {
  Entry* mine = entry(me_);
  if (mine == nullptr) return;
  std::strncpy(mine->phase, phase, sizeof mine->phase - 1);
  mine->beats.fetch_add(1, std::memory_order_release);
}

std::string HeartbeatBoard::behind() const {
  std::int64_t least = INT64_MAX, most = 0;
  for (int r = 0; r < ranks_; ++r) {
    const Entry* other = entry(r);
    if (other == nullptr) return "";
    const std::int64_t beats = other->beats.load(std::memory_order_acquire);
    least = std::min(least, beats);
    most = std::max(most, beats);
  }
  if (least == most) return "";
  std::string text;
  for (int r = 0; r < ranks_; ++r)
    if (const Entry* other = entry(r); other->beats.load(std::memory_order_acquire) == least)
      text += fmt::format("{}rank {} is behind, in phase \"{}\"", text.empty() ? "" : "; ",
                          other->world_rank, other->phase);
  return text;
}

}  // namespace choir
