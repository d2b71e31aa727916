#pragma once
// Work for the first ranks of a communicator, while the others wait without wanting their cores.
#include <functional>
#include <memory>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Collective over `all` (mpi or node): a communicator over its first `ranks` ranks in the same
/// order; nullptr on the others.
std::unique_ptr<Communicator> make_leading_group(const Communicator& all, int ranks);

/// Collective over `all`: returns when every rank has called it. Sleeps between looks, where
/// MPI_Barrier would spin; `look` is called at every look and may throw.
void quiet_barrier(const Communicator& all, const std::function<void()>& look = {});

}  // namespace choir
