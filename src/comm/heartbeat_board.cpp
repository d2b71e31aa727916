#include "choir/comm/heartbeat_board.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "choir/comm/flight_recorder.hpp"
#include "choir/core/clock.hpp"

namespace choir {
namespace {

/// Process ids mean the same to processes in which this is the same number.
std::uint64_t process_space() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

// What is not atomic is written before the first barrier.
struct HeartbeatBoard::Entry {
  std::atomic<std::int64_t> beats;
  std::atomic<bool> waiting;
  std::atomic<bool> left;  // in good order
  std::atomic<double> alive;
  std::int64_t world_rank;
  std::uint64_t space;
  int process;
  std::array<SharedName, 4> phase;  // pieces of 31 bytes
  FlightLog log;
};

HeartbeatBoard::HeartbeatBoard(Communicator& node, int world_rank)
    : memory_(node.allocate(sizeof(Entry))),
      ranks_(node.size()),
      me_(node.rank()),
      world_rank_(world_rank) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  static_assert(std::atomic<double>::is_always_lock_free);
  if (Entry* mine = entry(me_)) {
    mine->world_rank = world_rank;
    mine->process = getpid();
    mine->space = process_space();
    mine->alive = now_seconds();
    FlightRecorder::of_process().move_to(&mine->log);
  }
  node.barrier();
}

HeartbeatBoard::~HeartbeatBoard() {
  Entry* mine = entry(me_);
  if (mine == nullptr) return;
  mine->left = true;
  FlightRecorder::of_process().move_to(nullptr);
}

HeartbeatBoard::Entry* HeartbeatBoard::entry(int node_rank) const {
  return static_cast<Entry*>(memory_->block(node_rank));
}

void HeartbeatBoard::publish(const char* phase, bool waiting) {
  Entry* mine = entry(me_);
  if (mine == nullptr) return;
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
  if (Entry* mine = entry(me_)) mine->alive.store(now_seconds(), std::memory_order_release);
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
                          other->world_rank, flight_of(r).phase);
  return text;
}

// If the next one is dead too, who comes behind it is looked after by nobody else.
std::string HeartbeatBoard::dead() const {
  std::string text;
  if (entry(me_) == nullptr) return text;
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
                    .waiting = other.waiting};
  for (const SharedName& piece : other.phase) flight.phase += piece.text();
  if (other.space == entry(me_)->space) flight.state = state_of_process(other.process);
  return flight;
}

std::vector<RankFlight> HeartbeatBoard::flights() const {
  std::vector<RankFlight> all;
  if (entry(me_) == nullptr) {
    RankFlight mine{.world_rank = world_rank_, .process = getpid()};
    FlightRecorder::of_process().read([&](const FlightLog& log) {
      mine.calls = log.records();
      mine.groups = log.groups();
    });
    all.push_back(std::move(mine));
    return all;
  }
  for (int r = 0; r < ranks_; ++r) {
    RankFlight& flight = all.emplace_back(flight_of(r));
    flight.calls = entry(r)->log.records();
    flight.groups = entry(r)->log.groups();
  }
  return all;
}

}  // namespace choir
