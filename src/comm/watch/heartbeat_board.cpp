#include "src/comm/watch/heartbeat_board.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "choir/comm/flight_log.hpp"
#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

/// A number that is equal for processes in the same namespace of process ids.
std::uint64_t process_space() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

// Members that are not atomic are written before the first barrier.
struct HeartbeatBoard::Entry {
  std::atomic<std::int64_t> beats;
  std::atomic<bool> waiting;
  std::atomic<bool> left;      // the rank left in good order
  std::atomic<bool> reported;  // of the first rank: some rank reports for the node
  std::atomic<double> alive;
  std::int64_t world_rank;
  std::uint64_t space;
  int process;
  std::array<SharedName, 4> phase;  // parts of 31 bytes
  FlightLog log;
};

HeartbeatBoard::HeartbeatBoard(Communicator& node, int world_rank)
    : memory_(node.allocate(sizeof(Entry))),
      ranks_(memory_->shared() ? node.size() : 1),
      me_(memory_->shared() ? node.rank() : 0) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  static_assert(std::atomic<double>::is_always_lock_free);
  Entry* mine = entry(me_);
  CHOIR_CHECK(mine != nullptr, "communicator {} has no memory for heartbeats", node.name());
  mine->world_rank = world_rank;
  mine->process = getpid();
  mine->space = process_space();
  mine->alive = now_seconds();
  FlightRecorder::of_process().move_to(&mine->log);
  node.barrier();
}

HeartbeatBoard::~HeartbeatBoard() {
  entry(me_)->left = true;
  FlightRecorder::of_process().move_to(nullptr);
}

HeartbeatBoard::Entry* HeartbeatBoard::entry(int node_rank) const {
  return static_cast<Entry*>(memory_->shared() ? memory_->block(node_rank) : memory_->data());
}

void HeartbeatBoard::publish(const char* phase, bool waiting) {
  Entry* mine = entry(me_);
  std::string_view rest(phase);
  for (SharedName& piece : mine->phase) {
    const std::size_t now = std::min(rest.size(), SharedName::kBytes - 1);
    piece.set(rest.substr(0, now));
    rest.remove_prefix(now);
  }
  mine->waiting.store(waiting, std::memory_order_release);
  if (!waiting) mine->beats.fetch_add(1, std::memory_order_release);
}

void HeartbeatBoard::tick() {
  entry(me_)->alive.store(now_seconds(), std::memory_order_release);
}

std::string HeartbeatBoard::behind() const {
  std::vector<RankFlight> all;
  for (int r = 0; r < ranks_; ++r) all.push_back(flight_of(r));
  return choir::behind(all);
}

bool HeartbeatBoard::first_to_report() {
  return !entry(0)->reported.exchange(true);
}

const std::atomic<bool>& HeartbeatBoard::reported() const {
  return entry(0)->reported;
}

int HeartbeatBoard::leader() const {
  return static_cast<int>(entry(0)->world_rank);
}

// If the next rank is dead too, no other rank watches the ranks after it.
std::string HeartbeatBoard::dead() const {
  std::string text;
  for (int i = 1; i < ranks_; ++i) {
    const int r = (me_ + i) % ranks_;
    const Entry& other = *entry(r);
    if (other.left || other.space != entry(me_)->space) return text;
    if (state_of_process(other.process) != ProcessState::dead || other.left) return text;
    text +=
        fmt::format("{}rank {} (process {}) has died, in phase \"{}\"", text.empty() ? "" : "; ",
                    other.world_rank, other.process, flight_of(r).phase);
  }
  return text;
}

RankFlight HeartbeatBoard::flight_of(int node_rank) const {
  const Entry& other = *entry(node_rank);
  RankFlight flight{.world_rank = static_cast<int>(other.world_rank),
                    .process = other.process,
                    .alive = other.alive,
                    .waiting = other.waiting,
                    .beats = other.beats};
  for (const SharedName& piece : other.phase) flight.phase += piece.text();
  if (other.space == entry(me_)->space) flight.state = state_of_process(other.process);
  return flight;
}

std::vector<RankFlight> HeartbeatBoard::flights() const {
  std::vector<RankFlight> all;
  for (int r = 0; r < ranks_; ++r) {
    RankFlight& flight = all.emplace_back(flight_of(r));
    flight.calls = entry(r)->log.records();
    flight.groups = entry(r)->log.groups();
  }
  return all;
}

}  // namespace choir
