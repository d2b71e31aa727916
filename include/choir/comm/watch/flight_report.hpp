#pragma once
// What is known about ranks that make no progress, and which of them holds up the others. These are
// pure functions of what was read from the flight logs of the ranks.
#include <span>
#include <string>
#include <vector>

#include "choir/comm/flight_log.hpp"

namespace choir {

/// How a process is doing, by the kernel's account. `unknown`: it cannot be seen from here.
enum class ProcessState { unknown, running, sleeping, stopped, in_disk_wait, dead };

/// One rank at one moment.
struct RankFlight {
  int world_rank = 0;
  int process = 0;     ///< its id on the node
  std::string host{};  ///< of a rank of another node, or where several nodes are spoken of
  ProcessState state = ProcessState::unknown;
  double alive = 0;      ///< now_seconds() of the last sign of life of its watchdog; 0: none
  bool waiting = false;  ///< said to wait for another rank
  std::int64_t beats = 0;
  std::string phase;
  std::vector<CallRecord> calls;  ///< oldest first
  std::vector<GroupRecord> groups;
};

/// "all_reduce #118 of dp (4,194,304 bytes)"; a message: "receive #7 of pp (64 bytes, rank 1)"
std::string describe(const CallRecord& call);
/// "rank 1 is behind, in phase \"step 3: data\"", or "" when nobody is: of the ranks that are not
/// waiting, or of all if every rank is, those with the fewest beats. Nobody is when all have made
/// as many and all or none are waiting.
std::string behind(std::span<const RankFlight> ranks);
/// "rank 2 (process 71, stopped by a signal) has not entered all_reduce #118 of dp (4,194,304
/// bytes), where rank 0 waits since 3.1 s; its last call: all_gather #117 of tp (64 bytes), done
/// 3.2 s ago; in phase \"step 12: ...\"", one after the other: of those who keep others waiting the
/// ones that wait for nobody, or all of them when each waits for another. "" when nobody is seen to
/// keep others waiting.
std::string culprits(std::span<const RankFlight> ranks, double now);
/// Everything about one rank, a line for each of its communicators and calls.
std::string flight_table(const RankFlight& rank, double now);

/// State of a process of this machine. Local; reads /proc.
ProcessState state_of_process(int process);

}  // namespace choir
