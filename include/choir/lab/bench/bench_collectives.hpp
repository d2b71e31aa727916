#pragma once
// How fast this machine reduces and gathers: a table for `choir bench collectives` and `choir
// doctor`.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"

namespace choir {

struct CollectiveRow {
  std::string name;       ///< "all_reduce", "reduce_scatter", "all_gather"
  std::string transport;  ///< "mpi", "node", "two-level", "nccl" or "staged"
  std::size_t bytes = 0;  ///< whole buffer of one rank
  double seconds = 0;     ///< median, the slowest rank's
  /// As nccl-tests: the factor 2(n-1)/n of an all-reduce, (n-1)/n of reduce-scatter, all-gather and
  /// all-to-all, 1 of the others; 1e9 bytes/s.
  double bus_gb_per_s = 0;
  // Filled in by bench_axes() alone.
  std::string axis{}, redop{};  ///< "dp"; "sum" or "none"
  int root = -1, ranks = 0;     ///< of the axis
  double alg_gb_per_s = 0;      ///< bytes / s
  std::int64_t wrong = 0;       ///< elements of all ranks that are not what they should be
};

/// An all-reduce of one size, fp32, in place, by four ways that are measured in turns.
struct AllReduceComparison {
  std::size_t bytes = 0;
  double window = 0;        ///< seconds, node-shared window (Communicator "node")
  double best_chunked = 0;  ///< best of MPI_Allreduce in place in pieces of 256 KB, 1 MB, 4 MB
  std::size_t best_chunk_bytes = 0;
  double single = 0;  ///< one MPI_Allreduce call from one buffer into another
  double single_in_place = 0;
  /// The yardstick: seconds in which all ranks together copy `bytes` each with stores past the
  /// cache, n reads and n writes of the block as in the window way. Writing lines in place that
  /// were just read can be a little faster than this.
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
  std::size_t max_bytes = std::size_t{64} << 20;  ///< also the size of the comparison
  int repeats = 9;
  /// bench_axes() calls as an engine does: sums and all-gathers are started first and waited for
  /// after that, for which MPI has other algorithms, and a message has the link to itself.
  bool as_engine = false;
};

/// Collective over mesh.node(); every rank gets the same numbers. Random data. With one rank on the
/// node there is nothing to measure and the tables are empty.
CollectiveBench bench_collectives(Mesh& mesh, const CollectiveBenchOptions& options = {});
/// The comparison alone, collective over mesh.node().
AllReduceComparison compare_all_reduce(Mesh& mesh, const CollectiveBenchOptions& options = {});

/// Collective over the world: all-reduce, reduce-scatter, all-gather, broadcast, reduce, all-to-all
/// and a ring of messages along every axis of several ranks, fp32, in memory of the device that is
/// attached to the mesh; by the transport of the axis and by the one below it (MPI below windows,
/// staging below NCCL). All groups of an axis at once. What the first call of each gives is
/// checked, every element. Every rank gets the same numbers.
std::vector<CollectiveRow> bench_axes(Mesh& mesh, Device& device,
                                      const CollectiveBenchOptions& options = {});

}  // namespace choir
