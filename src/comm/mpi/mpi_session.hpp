#pragma once
// MPI from the start to the end of a process, with or without a launcher; the diagnosis of a wrong
// launcher; and waiting on nodes with more ranks than cores.

#include <functional>
#include <optional>
#include <string>

#include "choir/core/error.hpp"

namespace choir {

/// Initialises MPI (with MPI_THREAD_MULTIPLE requested) and finalises it. One per process, created
/// first in main and destroyed last. If it is destroyed while an exception unwinds, it aborts,
/// because finalising would wait for ranks that have not failed.
class MpiSession {
 public:
  /// Collective over all processes of the launch. Throws CommError if MPI cannot start.
  MpiSession(int* argc = nullptr, char*** argv = nullptr);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  /// The level that MPI granted: "multiple", "serialized", "funneled" or "single".
  std::string thread_level() const;
  bool thread_multiple() const;
  /// One line: "Open MPI v4.1.4, ...".
  static std::string library_version();

  /// Ends every rank of the launch with this exit code. Local.
  [[noreturn]] static void abort(int exit_code);
  [[noreturn]] static void abort(ExitCode code) { abort(static_cast<int>(code)); }

 private:
  int rank_ = 0, size_ = 1, provided_ = 0, unwinding_ = 0;
  std::string host_;
};

using EnvironmentLookup = std::function<const char*(const char*)>;

/// Number of ranks that the launcher of this process started, according to its environment; nothing
/// without a launcher. Supports Open MPI, PMI (MPICH, Intel, Cray PALS), MVAPICH and srun steps.
/// `lookup` is getenv unless a test passes its own. Local.
std::optional<int> launcher_world_size(const EnvironmentLookup& lookup = {});

/// "4 independent 1-rank jobs: wrong launcher ..." if the launcher started several ranks but MPI
/// sees one (mpiexec of one MPI with the library of another); otherwise nothing. Local.
std::optional<std::string> wrong_launcher(int mpi_size, const EnvironmentLookup& lookup = {});

/// True if several threads may call MPI at once; false before MPI is started. Local.
bool mpi_serves_threads();

/// Collective over the world, once MPI has started. MPICH and its derivatives (Cray, Intel,
/// MVAPICH) spin while they wait. On a node with more ranks than cores, the rank that the others
/// wait for then runs only after the scheduler has taken a core from a waiting one, milliseconds
/// later. From here on, blocking calls yield the core between polls. Open MPI yields by itself
/// (mpi_yield_when_idle), so nothing happens with it.
void give_way_on_a_crowded_node();

}  // namespace choir
