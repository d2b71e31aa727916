#pragma once
// Waiting on nodes with more ranks than cores.

namespace choir {

/// Collective over the world, once MPI has started. MPICH and its derivatives (Cray, Intel,
/// MVAPICH) spin while they wait. On a node with more ranks than cores, the rank that the others
/// wait for then runs only after the scheduler has taken a core from a waiting one, milliseconds
/// later. From here on, blocking calls yield the core between polls. Open MPI yields by itself
/// (mpi_yield_when_idle), so nothing happens with it.
void give_way_on_a_crowded_node();

}  // namespace choir
