#include "choir/comm/heartbeat_board.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace choir {

struct HeartbeatBoard::Entry {
  std::atomic<std::int64_t> beats;
  std::atomic<bool> waiting;
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

void HeartbeatBoard::publish(const char* phase, bool waiting) {
  Entry* mine = entry(me_);
  if (mine == nullptr) return;
  std::strncpy(mine->phase, phase, sizeof mine->phase - 1);
  mine->waiting.store(waiting, std::memory_order_release);
  if (!waiting) mine->beats.fetch_add(1, std::memory_order_release);
}

std::string HeartbeatBoard::behind() const {
  bool all_wait = true;
  for (int r = 0; r < ranks_; ++r) {
    const Entry* other = entry(r);
    if (other == nullptr) return "";
    all_wait = all_wait && other->waiting.load(std::memory_order_acquire);
  }
  std::int64_t least = INT64_MAX, most = 0;
  int waiting = 0;
  const auto suspect = [&](int r) {
    return all_wait || !entry(r)->waiting.load(std::memory_order_acquire);
  };
  for (int r = 0; r < ranks_; ++r) {
    const std::int64_t beats = entry(r)->beats.load(std::memory_order_acquire);
    if (!suspect(r)) ++waiting;
    most = std::max(most, beats);
    if (suspect(r)) least = std::min(least, beats);
  }
  if (waiting == 0 && least == most) return "";
  std::string text;
  for (int r = 0; r < ranks_; ++r)
    if (const Entry* other = entry(r);
        suspect(r) && other->beats.load(std::memory_order_acquire) == least)
      text += fmt::format("{}rank {} is behind, in phase \"{}\"", text.empty() ? "" : "; ",
                          other->world_rank, other->phase);
  return text;
}

}  // namespace choir
