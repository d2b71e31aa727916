#pragma once
// Communicators whose ranks share a node. Their buffers are in MPI-3 shared-memory windows and are
// reduced in place: each rank adds its slice of all blocks and writes the result to all of them.
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "src/comm/mpi/mpi_communicator.hpp"

namespace choir {

/// The buffers that did not fit into the shared memory of a node. The communicators of a mesh share
/// one record.
struct WindowShortage {
  /// The largest window that is tried, in bytes of all ranks of the node; smaller in tests.
  double largest = std::numeric_limits<double>::infinity();
  std::atomic<double> room{0};         ///< free bytes of /dev/shm when a window did not fit
  std::atomic<std::int64_t> bytes{0};  ///< of this rank's buffers outside of windows
};

struct NodeOptions {
  /// A rank that waits longer for another one throws CommError with the missing ranks and the
  /// operation. Seconds; 0 means no limit.
  double timeout_seconds = 300;
  /// Buffers of at least this many bytes are gathered with stores that bypass the cache (their
  /// targets were not read, so the cache gains nothing). Reductions never bypass it: they write
  /// lines that they have just read, and bypassing the cache made them 1.6 (64 MB) to 3.5 times (4
  /// MB) slower in measurements.
  std::size_t streaming_bytes = std::size_t{32} << 20;
  /// Maximum size of messages between nodes in reductions and gathers; with many nodes they are
  /// shorter. The default stays below 64 KiB, from which on Open MPI over TCP first asks the
  /// receiver while the link is idle.
  std::size_t link_message_bytes = std::size_t{60} << 10;
  MpiOptions mpi;
  /// If given, buffers that do not fit into shared memory on some node are memory of their own on
  /// all of them, on which collectives use MPI, and are recorded here. Otherwise they are refused.
  std::shared_ptr<WindowShortage> shortage;
};

/// Collective over `group` (duplicated, not kept). Throws CommError on every rank if the ranks do
/// not share a node or shared memory is short.
///
/// all_reduce, reduce_scatter and all_gather on memory inside a buffer from allocate() use the
/// windows. Floor of an all_reduce over n ranks: n reads and n writes of the block (reduce_scatter:
/// n and 1). Sums in windows always follow the fixed tree of Summation::tree, so `fast` and `tree`
/// give the same bits. Other memory and the other collectives use MPI.
///
/// start_* announces this rank's arrival and returns; the additions happen in wait() and, in steps,
/// in test(). A wait, barrier or blocking window collective completes all window operations started
/// before it. Calls that differ between ranks (operation, count, offset) are detected and thrown on
/// every rank. After a CommError the communicator is broken: every later call throws, and its
/// destructor frees nothing collectively. Collectives allocate nothing on the heap after the first
/// call of each kind.
std::unique_ptr<Communicator> make_node_communicator(MPI_Comm group, const std::string& name,
                                                     const NodeOptions& options = {});

/// Collective over `group` (duplicated, not kept), whose ranks are on several nodes. `node` is any
/// number that is equal for the ranks of one node, which must be able to share memory, and differs
/// between nodes.
///
/// The same with blocks shared by the ranks of each node. The ranks of a node add in the window;
/// each exchanges its part of the sum with its partners on the other nodes and writes the result to
/// all blocks of its node. Over n nodes each sends 2 (n-1)/n of the bytes of an all_reduce, and
/// half of that in the other two collectives, in log2 n messages if n is a power of two
/// (node_topology.hpp). Results are the same on every rank. If more than one partial sum of bf16 or
/// f16 is sent, the sums are sent as f32 and rounded once at the end (an all_reduce then sends 3
/// (n-1)/n of its bytes). Such sums and those with Summation::tree use MPI unless the nodes are
/// branches of that tree (consecutive ranks, the same power of two on every node but the last), so
/// that their bits do not depend on the nodes. Calls that differ are detected within a node;
/// between nodes they are detected by their sizes.
std::unique_ptr<Communicator> make_two_level_communicator(MPI_Comm group, const std::string& name,
                                                          int node,
                                                          const NodeOptions& options = {});

/// NodeOptions::shortage of a communicator that has it; nullptr for every other one. Local.
std::shared_ptr<WindowShortage> shortage_of(const Communicator& communicator);

/// Free bytes of /dev/shm below which a mesh that may choose makes no windows at all: they would
/// hold little more than the boards on which the ranks announce their calls.
inline constexpr double kLeastSharedMemory = 1 << 20;

/// A sentence about buffers for which the shared memory of a node was too small, and what that
/// costs; "" if there are none. `node` is that of the mesh, whose transport was chosen
/// automatically. Collective over `world`; the same on every rank.
std::string shortage_note(Communicator& world, const Communicator& node);

}  // namespace choir
