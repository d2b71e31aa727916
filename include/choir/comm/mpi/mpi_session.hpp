#pragma once
// MPI from start to end of a process, with or without a launcher, and the diagnosis of a wrong one.
#include <functional>
#include <optional>
#include <string>

#include "choir/core/error.hpp"

namespace choir {

/// Initialises MPI (asking for MPI_THREAD_MULTIPLE) and finalises it. One per process, created
/// first in main and destroyed last. If it is destroyed while an exception unwinds, it aborts
/// instead: finalising would wait for ranks that know nothing of the failure.
class MpiSession {
 public:
  /// Collective over all processes of the launch. Throws CommError when MPI cannot start.
  MpiSession(int* argc = nullptr, char*** argv = nullptr);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  /// "multiple", "serialized", "funneled" or "single": what MPI granted.
  std::string thread_level() const;
  bool thread_multiple() const;
  /// One line: "Open MPI v4.1.4, ...".
  static std::string library_version();

  /// Local: ends every rank of the launch with this exit code.
  [[noreturn]] static void abort(int exit_code);
  [[noreturn]] static void abort(ExitCode code) { abort(static_cast<int>(code)); }

 private:
  int rank_ = 0, size_ = 1, provided_ = 0, unwinding_ = 0;
  std::string host_;
};

using EnvironmentLookup = std::function<const char*(const char*)>;

/// Local: how many ranks the launcher of this process says it started; nothing without a launcher.
/// Knows Open MPI, PMI (MPICH, Intel, Cray PALS), MVAPICH and srun steps. `lookup` is getenv unless
/// a test gives its own.
std::optional<int> launcher_world_size(const EnvironmentLookup& lookup = {});

/// Local: "4 independent 1-rank jobs: wrong launcher ..." when the launcher started several ranks
/// but MPI sees one (mpiexec of one MPI with the library of another). Nothing when all is well.
std::optional<std::string> wrong_launcher(int mpi_size, const EnvironmentLookup& lookup = {});

/// Local. Whether several threads may call MPI at once; false before MPI is started.
bool mpi_serves_threads();

}  // namespace choir
