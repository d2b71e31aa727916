#pragma once
// The speed of the collectives on this machine, as a table for `choir bench collectives` and `choir
// doctor`.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"

namespace choir {

struct CollectiveRow {
  std::string name;       ///< "all_reduce", "reduce_scatter", "all_gather"
  std::string transport;  ///< "mpi", "node", "two-level", "nccl" or "staged"
  std::size_t bytes = 0;  ///< the whole buffer of one rank
  double seconds = 0;     ///< median over the repeats, of the slowest rank
  /// Bus bandwidth with the factors of nccl-tests: 2(n-1)/n for all-reduce, (n-1)/n for
  /// reduce-scatter, all-gather and all-to-all, 1 for the others; in 1e9 bytes/s.
  double bus_gb_per_s = 0;
  // Only bench_axes() fills in the following.
  std::string axis{}, redop{};  ///< "dp"; "sum" or "none"
  int root = -1, ranks = 0;     ///< root; number of ranks of the axis
  double alg_gb_per_s = 0;      ///< bytes / s
  std::int64_t wrong = 0;       ///< elements with a wrong value, over all ranks
};

/// An all-reduce of one size, fp32, in place, by four algorithms that are measured in turns.
struct AllReduceComparison {
  std::size_t bytes = 0;
  double window = 0;        ///< seconds with the node-shared window (Communicator "node")
  double best_chunked = 0;  ///< the best of MPI_Allreduce in place in pieces of 256 KB, 1 MB, 4 MB
  std::size_t best_chunk_bytes = 0;
  double single = 0;  ///< one MPI_Allreduce call from one buffer into another
  double single_in_place = 0;
  /// The yardstick: the seconds in which all ranks together copy `bytes` each with stores that
  /// bypass the cache, n reads and n writes of the block as in the window algorithm. Writing lines
  /// in place that were just read can be a little faster than this.
  double copy = 0;
  double over_chunked() const { return best_chunked / window; }
  double over_single() const { return single / window; }
};

struct CollectiveBench {
  int ranks = 1;  ///< of the node
  std::vector<CollectiveRow> rows;
  AllReduceComparison comparison;
};

struct CollectiveBenchOptions {
  std::size_t min_bytes = 1024;
  std::size_t max_bytes = std::size_t{64} << 20;  ///< also the size used in the comparison
  int factor = 4;                                 ///< from each size to the next
  int repeats = 9;
  /// bench_axes() calls the collectives as an engine does: sums and all-gathers are started first
  /// and waited for afterwards. MPI uses other algorithms for these, and a message has the link to
  /// itself.
  bool as_engine = false;
  /// Receives a line on every rank before each part of the measurement; may be empty.
  std::function<void(const std::string&)> say{};
};

/// Collective over mesh.node(); every rank gets the same numbers. The data are random. With one
/// rank on the node the tables are empty.
CollectiveBench bench_collectives(Mesh& mesh, const CollectiveBenchOptions& options = {});
/// Only the comparison. Collective over mesh.node().
AllReduceComparison compare_all_reduce(Mesh& mesh, const CollectiveBenchOptions& options = {});

/// Measures all-reduce, reduce-scatter, all-gather, broadcast, reduce, scatter, gather, all-to-all
/// with equal and with unequal counts (the exchange of tokens among experts, of which some are
/// popular; its bandwidth is that into the busiest rank), and a ring of messages along every axis
/// of several ranks, fp32, in memory of the device that is attached to the mesh. Each is measured
/// with the transport of the axis and with the one below it (MPI below windows, staging below
/// NCCL), in all groups of an axis at once. Every element of the first result of each is checked.
/// Collective over the world; every rank gets the same numbers.
std::vector<CollectiveRow> bench_axes(Mesh& mesh, Device& device,
                                      const CollectiveBenchOptions& options = {});

}  // namespace choir
