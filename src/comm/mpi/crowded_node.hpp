#pragma once
// More ranks on a node than it has cores.

namespace choir {

/// Collective over the world, once MPI has started. MPICH and its kin (Cray's, Intel's, MVAPICH)
/// spin while they wait. On a node with more ranks than cores the one that is waited for then has
/// its turn only when the scheduler takes a core from one that waits, milliseconds later: from here
/// on, the calls that block give the core away between one look and the next. Open MPI does that
/// by itself (mpi_yield_when_idle): with it nothing happens here.
void give_way_on_a_crowded_node();

}  // namespace choir
