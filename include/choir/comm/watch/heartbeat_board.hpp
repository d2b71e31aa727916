#pragma once
// The heartbeats and flight logs of all ranks of a node in memory they share, so that the one that
// finds a hang can say who is behind and in which call: of ranks that do the same things, the
// culprit has made the fewest beats. Ranks that are known to wait for another one are no culprits.
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/watch/flight_report.hpp"

namespace choir {

class HeartbeatBoard {
 public:
  /// Collective over `node`, to create and to destroy. While it stands the calls of this process
  /// are recorded on it. Without shared windows the board knows of this rank alone. One at a time.
  HeartbeatBoard(Communicator& node, int world_rank);
  ~HeartbeatBoard();
  HeartbeatBoard(const HeartbeatBoard&) = delete;
  HeartbeatBoard& operator=(const HeartbeatBoard&) = delete;

  /// Local, lock free, allocates nothing: this rank has begun `phase` (cut to 119 bytes). With
  /// `waiting` it has stopped to wait for another rank, which is no beat.
  void publish(const char* phase, bool waiting = false);
  /// Local: this process lives, whatever its other threads do.
  void tick();
  /// Local: behind() of the ranks that can be seen, "" when that is this one alone.
  std::string behind() const;
  /// Local: "rank 2 (process 1234) has died, in phase ...", or "". Looks at the next living rank
  /// and those before it; ranks that have left their board in good order are not dead.
  std::string dead() const;
  /// Local: all ranks that can be seen, by their rank on the node.
  std::vector<RankFlight> flights() const;
  /// Local: true for the first rank on the board that asks, and never again.
  bool first_to_report();
  /// Local: the lowest world rank on the board.
  int leader() const;
  /// There are ranks on other nodes, or memory is not shared: others must report for themselves,
  /// see FlightExchange.
  bool sees_all(int world_size) const { return ranks_ == world_size; }

 private:
  struct Entry;
  Entry* entry(int node_rank) const;
  RankFlight flight_of(int node_rank) const;

  std::unique_ptr<CommBuffer> memory_;
  int ranks_ = 0, me_ = 0;
};

}  // namespace choir
