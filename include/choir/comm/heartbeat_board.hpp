#pragma once
// The heartbeats of all ranks of a node in memory they share, so that the one that finds a hang can
// say who is behind: of ranks that do the same things, the culprit has made the fewest beats. Ranks
// that are known to wait for another one are no culprits.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"

namespace choir {

class HeartbeatBoard {
 public:
  /// Collective over `node`, to create and to destroy. Without shared windows the board stays
  /// empty.
  HeartbeatBoard(Communicator& node, int world_rank);

  /// Local, lock free, allocates nothing: this rank has begun `phase` (cut to 119 bytes). With
  /// `waiting` it has stopped to wait for another rank, which is no beat.
  void publish(const char* phase, bool waiting = false);
  /// Local: "rank 1 is behind, in phase \"step 3: data\"", or "" when nobody is (or nobody can be
  /// seen): of the ranks that are not waiting, or of all if every rank is, those with the fewest
  /// beats. Nobody is when all have made as many and all or none are waiting.
  std::string behind() const;

 private:
  struct Entry;
  Entry* entry(int node_rank) const;

  std::unique_ptr<CommBuffer> memory_;
  int ranks_ = 0, me_ = 0;
};

}  // namespace choir
