#pragma once
// A communicator over MPI alone, for any ranks on any nodes and for any memory; and what lets the
// first ranks of a communicator work while the others wait without keeping their cores busy.
#include <functional>
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/comm/mpi/mpi_api.hpp"

namespace choir {

struct MpiOptions {
  /// Big reductions travel in pieces of this size: one MPI_Allreduce of 64 MB is 2-3 times slower
  /// than pieces that stay in the cache.
  std::size_t reduce_chunk_bytes = std::size_t{1} << 20;
  /// What goes both ways at once travels in messages of at most this size, which Open MPI sends
  /// over TCP without asking (MpiSession). A longer one waits for the receiver's answer, and that
  /// behind the data of the other direction: twice the time, or not, as it happens.
  std::size_t message_bytes = std::size_t{1} << 20;
  /// No single MPI call moves more: counts are int, and some MPI libraries fail close to 2 GiB.
  std::size_t max_chunk_bytes = std::size_t{1} << 30;
};

/// Collective over `group`, which is duplicated twice (one message space for blocking calls, one
/// for asynchronous ones) and not kept. Reductions of bf16, f16, those of Summation::tree and all
/// that stay scattered exchange slices and add them in a fixed tree over ranks. Tags of send and
/// receive are below 30000.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group, const std::string& name,
                                                    const MpiOptions& options = {});

/// Collective over `all` (mpi or node): a communicator over its first `ranks` ranks in the same
/// order; nullptr on the others.
std::unique_ptr<Communicator> make_leading_group(const Communicator& all, int ranks);

/// Collective over `all`: returns when every rank has called it. Sleeps between looks, where
/// MPI_Barrier would spin; `look` is called at every look and may throw.
void quiet_barrier(const Communicator& all, const std::function<void()>& look = {});

}  // namespace choir
