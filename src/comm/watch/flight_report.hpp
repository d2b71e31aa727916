#pragma once
// Reports about ranks that make no progress, and about the ranks that hold up the others: pure
// functions of the flight logs, and the report on several nodes, assembled from files in the run
// directory. Each node writes one, and the first rank that finds the hang reads them and reports
// for all. Files need neither MPI nor the network of the collectives, which may be what hangs.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
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

/// Exchanges the flights of all nodes through files. Every function but the constructor is local.
class FlightExchange {
 public:
  /// Collective over the world. `leader` is the lowest world rank among the ranks whose flights
  /// this rank can see, and is equal for all of them. `directory` must be visible to all nodes;
  /// files of an earlier launch in it are ignored.
  FlightExchange(Communicator& world, int leader, std::string directory);

  /// Writes the flights of the ranks that are visible here into the directory, which must exist.
  /// Returns "" or why that failed. Local.
  std::string leave(const std::vector<RankFlight>& flights) const;
  /// True for the first rank of this launch that calls it. Local.
  bool claim() const;

  struct Gathered {
    std::vector<RankFlight> flights;  ///< with their hosts; times are of the clock of this node
    std::vector<std::string> silent;  ///< ranks without a file: "ranks 4-7 on node17"
  };
  /// Reads the files of all nodes; waits at most `seconds` for those that are missing. Local.
  Gathered gather(double seconds) const;
  /// Writes the report into the file that claim() created. Local.
  void keep(const std::string& report) const;

 private:
  struct Seen {
    int leader = 0;
    std::vector<int> ranks;
    std::string host;
  };
  std::string path_of(int leader) const;
  bool read(const Seen& node, std::vector<RankFlight>& flights) const;

  std::string directory_;
  std::uint64_t launch_ = 0;
  int leader_ = 0;
  std::vector<Seen> nodes_;
};

/// The flights of one node as text, and back: the launch, then the argument of leave(). Times are
/// stored relative to `now`, the time of the writer or the reader, so that the reader may have
/// another clock. A text of another launch or an incomplete text yields nothing.
std::string flights_text(std::uint64_t launch, const std::vector<RankFlight>& flights, double now);
std::vector<RankFlight> flights_of_text(const std::string& text, std::uint64_t launch, double now);

/// One sentence for all nodes: the ranks that are behind, the ranks that keep others waiting, and
/// the ranks that did not report.
std::string report_of_all(const FlightExchange::Gathered& gathered, double now);

}  // namespace choir
