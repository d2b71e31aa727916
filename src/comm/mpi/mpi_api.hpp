#pragma once
// mpi.h without its C++ bindings, return codes as errors, element types, and the MPI handle of a
// group. For the few files that call MPI directly (communicators, MPI-IO readers, checkpoints).
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

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

}  // namespace choir
