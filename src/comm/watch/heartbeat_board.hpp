#pragma once
// Heartbeats and flight logs of all ranks of a node in shared memory, so that the rank that finds a
// hang can report who is behind and in which call. Among ranks that do the same work, the culprit
// has the fewest beats. Ranks that declared that they wait for another one are not culprits.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/comm/watch/flight_report.hpp"

namespace choir {

class HeartbeatBoard {
 public:
  /// Collective over `node`, to create and to destroy. While the board exists, the calls of this
  /// process are recorded on it. Without shared windows it contains only this rank. One at a time.
  HeartbeatBoard(Communicator& node, int world_rank);
  ~HeartbeatBoard();
  HeartbeatBoard(const HeartbeatBoard&) = delete;
  HeartbeatBoard& operator=(const HeartbeatBoard&) = delete;

  /// This rank has begun `phase` (cut to 119 bytes). With `waiting` it waits for another rank,
  /// which is not a beat. Local, lock-free, allocates nothing.
  void publish(const char* phase, bool waiting = false);
  /// Shows that this process is alive, whatever its other threads do. Local.
  void tick();
  /// behind() of the visible ranks; "" if this is the only one. Local.
  std::string behind() const;
  /// "rank 2 (process 1234) has died, in phase ...", or "". Checks the ranks after this one up to
  /// the next living rank; ranks that left the board in good order are not dead. Local.
  std::string dead() const;
  /// All visible ranks, by their rank on the node. Local.
  std::vector<RankFlight> flights() const;
  /// True for the first rank on the board that calls it, and never again. Local.
  bool first_to_report();
  /// True as soon as a rank on the board has begun to report; valid as long as the board.
  const std::atomic<bool>& reported() const;
  /// The lowest world rank on the board. Local.
  int leader() const;
  /// False if there are ranks on other nodes or memory is not shared: those ranks must report
  /// themselves (see FlightExchange).
  bool sees_all(int world_size) const { return ranks_ == world_size; }

 private:
  struct Entry;
  Entry* entry(int node_rank) const;
  RankFlight flight_of(int node_rank) const;

  std::unique_ptr<CommBuffer> memory_;
  int ranks_ = 0, me_ = 0;
};

}  // namespace choir
