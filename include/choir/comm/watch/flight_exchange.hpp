#pragma once
// The report of a hang on several nodes, assembled from files in the run directory: each node
// writes one, and the first rank that finds the hang reads them and reports for all. Files need
// neither MPI nor the network of the collectives, which may be what hangs.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/watch/flight_report.hpp"

namespace choir {

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
