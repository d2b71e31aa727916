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
  /// Between nodes what is reduced or gathered travels in messages of at most this size; shorter
  /// ones where there are many nodes. The default stays below the 64 KiB from which on Open
  /// MPI, sending by TCP, asks the receiver first: the link is idle until the answer is back.
  std::size_t link_message_bytes = std::size_t{60} << 10;
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

/// Collective over `group` (duplicated, not kept), whose ranks are on several nodes: `node` is any
/// number that those of one node, which must be able to share memory, have in common.
///
/// As above, with blocks shared by the ranks of each node: these add in the window, each sends its
/// part of the sum to its partner on every other node and gets theirs, and writes the result to
/// all blocks of its node. Over n nodes each sends 2 (n-1)/n of the bytes of an all_reduce, half of
/// that for the other two, in log2 n messages where n is a power of two (node_rounds.hpp).
/// Results are the same on every rank. Sums of bf16 and f16 travel as f32 until they are complete,
/// where more than one sum is on the way, and are rounded once (an all_reduce is then 3 (n-1)/n of
/// its bytes). They and those of Summation::tree go through MPI where the nodes are not branches of
/// that tree (consecutive ranks, on each node but the last the same power of two), so that their
/// bits do not depend on nodes. Different calls are detected within a node, and between nodes by
/// their sizes.
std::unique_ptr<Communicator> make_two_level_communicator(MPI_Comm group, const std::string& name,
                                                          int node,
                                                          const NodeOptions& options = {});

}  // namespace choir
