#pragma once
// mpi.h without its C++ bindings, return codes as errors, element types, and the MPI handle of a
// group, for the few files that call MPI directly (communicators, MPI-IO readers, checkpoints).
// Communicators over MPI alone, for any ranks on any nodes and for any memory; and helpers for work
// of the first ranks during which the others wait without keeping their cores busy.

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>

#include "choir/comm/communicator.hpp"

namespace choir {

/// MPI's text for a return code: "MPI_ERR_TRUNCATE: message truncated".
std::string mpi_text(int code);

[[noreturn]] void throw_mpi_error(int code, std::string_view call, std::string_view where,
                                  std::source_location at);

/// Throws CommError "MPI_Allreduce on dp (rank 1 of 4) failed: <MPI's text>". `where` names the
/// group (or file) and may be empty. Needs MPI_ERRORS_RETURN on the handle. Local.
inline void mpi_check(int code, std::string_view call, std::string_view where = {},
                      std::source_location at = std::source_location::current()) {
  if (code != MPI_SUCCESS) [[unlikely]]
    throw_mpi_error(code, call, where, at);
}

/// An internal check fails for bf16 and f16, which MPI 3.1 does not support.
MPI_Datatype mpi_type(DType dtype);
MPI_Op mpi_op(ReduceOp op);

/// Interface of communicators that have an MPI handle; see mpi_handle().
class HasMpiHandle {
 public:
  virtual ~HasMpiHandle() = default;
  virtual MPI_Comm mpi_handle() const = 0;
};

/// The MPI group behind a communicator, which keeps owning it: for MPI_File_open and HDF5. For a
/// null communicator an internal check fails. Local.
MPI_Comm mpi_handle(const Communicator& comm);

struct MpiOptions {
  /// Large reductions are divided into chunks of this size: one MPI_Allreduce of 64 MB takes 2-3
  /// times as long as chunks that stay in the cache.
  std::size_t reduce_chunk_bytes = std::size_t{1} << 20;
  /// Maximum size of messages that are sent in both directions at once. Open MPI sends messages up
  /// to this size over TCP without a handshake (MpiSession). A longer message waits for the
  /// receiver's answer, which may queue behind the data of the other direction and then doubles the
  /// time.
  std::size_t message_bytes = std::size_t{1} << 20;
  /// Maximum bytes of one MPI call: counts are int, and some MPI libraries fail close to 2 GiB.
  std::size_t max_chunk_bytes = std::size_t{1} << 30;
};

/// Collective over `group`, which is duplicated twice (one message space for blocking calls, one
/// for asynchronous ones) and not kept. Reductions of bf16 and f16, those with Summation::tree and
/// all reduce-scatters exchange slices and add them in a fixed tree over ranks. Tags of send and
/// receive are below 30000.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group, const std::string& name,
                                                    const MpiOptions& options = {});

/// Collective over `all` (mpi or node): a communicator over its first `ranks` ranks in the same
/// order; nullptr on the others.
std::unique_ptr<Communicator> make_leading_group(const Communicator& all, int ranks);

/// Collective over `all`: returns when every rank has called it. Sleeps between polls, where
/// MPI_Barrier would spin; `look` is called at every poll and may throw.
void quiet_barrier(const Communicator& all, const std::function<void()>& look = {});

}  // namespace choir
