#pragma once
// What the boards of all nodes show of a hang, put together through files in the run directory:
// each node leaves one, and the first to find the hang reads them and speaks for all. Files need
// neither MPI nor the network of the collectives, which may be what hangs.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/watch/flight_report.hpp"

namespace choir {

class FlightExchange {
 public:
  /// Collective over the world. `leader` is the lowest world rank of those whose flights this rank
  /// can see, equal for all of them. `directory` is one that all nodes see; what an earlier launch
  /// left there is not taken for this one's.
  FlightExchange(Communicator& world, int leader, std::string directory);

  /// Local: leaves the flights of the ranks that can be seen from here, in a directory that is
  /// there. "" or why that failed.
  std::string leave(const std::vector<RankFlight>& flights) const;
  /// Local: true for the first of all ranks of this launch that asks.
  bool claim() const;

  struct Gathered {
    std::vector<RankFlight> flights;  ///< with their hosts; times are of the clock of this node
    std::vector<std::string> silent;  ///< "ranks 4-7 on node17", of whom nothing came
  };
  /// Local: what all nodes left. Waits for those that have not at most `seconds`.
  Gathered gather(double seconds) const;
  /// Local: keeps what was found where claim() left a place for it.
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

/// The flights of one node as text, and back: launch, then what leave() was given. Times are kept
/// as how long ago they were, so that the reader may have another clock; `now` is that of the
/// writer or the reader. Nothing is read of another launch or of a text that is not whole.
std::string flights_text(std::uint64_t launch, const std::vector<RankFlight>& flights, double now);
std::vector<RankFlight> flights_of_text(const std::string& text, std::uint64_t launch, double now);

/// One sentence for all nodes: who is behind, who keeps whom waiting, of whom nothing was heard.
std::string report_of_all(const FlightExchange::Gathered& gathered, double now);

}  // namespace choir
