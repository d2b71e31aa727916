#pragma once
// How fast this machine reduces and gathers: a table for `choir bench comm` and `choir doctor`.
#include <cstddef>
#include <string>
#include <vector>

#include "choir/comm/mesh.hpp"

namespace choir {

struct CollectiveRow {
  std::string name;         ///< "all_reduce", "reduce_scatter", "all_gather"
  std::string transport;    ///< "mpi", "node", "nccl" or "staged"
  std::size_t bytes = 0;    ///< whole buffer of one rank
  double seconds = 0;       ///< median, the slowest rank's
  double bus_gb_per_s = 0;  ///< as nccl-tests: 2(n-1)/n * bytes / s, (n-1)/n for the other two; 1e9
};

/// All-reduce of one size, fp32, in place, by four ways measured in turns.
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
};

/// Collective over mesh.node(); every rank gets the same numbers. Random data. With one rank on the
/// node there is nothing to measure and the tables are empty.
CollectiveBench bench_collectives(Mesh& mesh, const CollectiveBenchOptions& options = {});

/// Collective over the world: the same three along the data axis, in memory of the device that is
/// attached to the mesh, by its transport and, as a yardstick, staged through host memory. Every
/// rank gets the same numbers.
std::vector<CollectiveRow> bench_device_collectives(Mesh& mesh, Device& device,
                                                    const CollectiveBenchOptions& options = {});

}  // namespace choir
