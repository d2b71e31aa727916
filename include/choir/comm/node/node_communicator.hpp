#pragma once
// A communicator whose ranks share a node. The blocks that it allocates live in MPI-3 shared-memory
// windows and are reduced in place: each rank adds its slice of all blocks and writes it to all of
// them.
#include <memory>
#include <string>

#include "choir/comm/mpi/mpi_communicator.hpp"

namespace choir {

struct NodeOptions {
  /// A rank that waits longer than this for another one throws CommError naming the missing ranks
  /// and the operation. Seconds; 0 waits for ever.
  double timeout_seconds = 300;
  /// From this many bytes of a whole buffer on, gathers store past the cache (their targets were
  /// not read, so the cache gains nothing). Reductions never do: they write lines they have just
  /// read, and storing past the cache made them 1.6 (64 MB) to 3.5 times (4 MB) slower where it was
  /// measured.
  std::size_t streaming_bytes = std::size_t{32} << 20;
  MpiOptions mpi;
};

/// Collective over `group` (duplicated, not kept); CommError on every rank when the ranks do not
/// share a node or shared memory is short.
///
/// all_reduce, reduce_scatter and all_gather on memory inside a buffer from allocate() take the
/// window way: floor for all_reduce over n ranks is n reads and n writes of the block
/// (reduce_scatter n and 1). Sums follow the fixed tree of Summation::tree whatever was asked for,
/// so `fast` and `tree` give the same bits there. Other memory, and the other collectives, go
/// through MPI.
///
/// start_*: announces this rank's arrival and returns; the adding happens in wait() and, in pieces,
/// in test(). A wait, barrier or blocking window collective completes all window operations started
/// before it. Different calls on different ranks (operation, count, offset) are detected and thrown
/// on every rank. After a CommError the communicator is broken: every later call throws, and its
/// destructor frees nothing collectively. Nothing is allocated on the heap by collectives after the
/// first call of each kind.
std::unique_ptr<Communicator> make_node_communicator(MPI_Comm group, const std::string& name,
                                                     const NodeOptions& options = {});

}  // namespace choir
