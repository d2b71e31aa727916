#pragma once
// Reports about ranks that make no progress, and about the ranks that hold up the others. These are
// pure functions of the flight logs of the ranks.
#include <span>
#include <string>
#include <vector>

#include "choir/comm/flight_log.hpp"

namespace choir {

/// The state of a process as reported by the kernel. `unknown`: it is not visible from here.
enum class ProcessState { unknown, running, sleeping, stopped, in_disk_wait, dead };

/// One rank at one moment.
struct RankFlight {
  int world_rank = 0;
  int process = 0;     ///< its id on the node
  std::string host{};  ///< set for ranks of other nodes, or if the report covers several nodes
  ProcessState state = ProcessState::unknown;
  double alive = 0;      ///< now_seconds() of the last tick of its watchdog; 0: none
  bool waiting = false;  ///< true if the rank declared that it waits for another one
  std::int64_t beats = 0;
  std::string phase;
  std::vector<CallRecord> calls;  ///< oldest first
  std::vector<GroupRecord> groups;
};

/// "all_reduce #118 of dp (4,194,304 bytes)", or for a message "receive #7 of pp (64 bytes, rank
/// 1)".
std::string describe(const CallRecord& call);
/// "rank 1 is behind, in phase \"step 3: data\"", for each rank with the fewest beats among the
/// ranks that are not waiting (or among all, if every rank waits). "" if all ranks have equally
/// many beats and all or none of them are waiting.
std::string behind(std::span<const RankFlight> ranks);
/// "rank 2 (process 71, stopped by a signal) has not entered all_reduce #118 of dp (4,194,304
/// bytes), where rank 0 has waited for 3.1 s; its last call: all_gather #117 of tp (64 bytes), done
/// 3.2 s ago; in phase \"step 12: ...\"", for each culprit. Culprits are the ranks that keep others
/// waiting and do not wait themselves, or all that keep others waiting if each of them waits. "" if
/// there is none.
std::string culprits(std::span<const RankFlight> ranks, double now);
/// Everything about one rank, with a line for each of its communicators and calls.
std::string flight_table(const RankFlight& rank, double now);

/// State of a process of this machine. Local; reads /proc.
ProcessState state_of_process(int process);

}  // namespace choir
