#pragma once
// Turns errors into messages and exit codes: the only place where a process decides to end.
#include <functional>

#include "choir/comm/mpi_session.hpp"

namespace choir {

/// Runs `body` with MPI up and returns its exit code. An error that all ranks agreed on is printed
/// once and every rank returns its code; any other error is printed by its rank, and all ranks are
/// aborted with its code.
int with_mpi(const std::function<int(MpiSession&)>& body);

/// The same for commands of one process that need no MPI. Under a launcher, whose every process
/// would say the same, the first prints the error.
int without_mpi(const std::function<int()>& body);

}  // namespace choir
