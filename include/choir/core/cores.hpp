#pragma once
// The CPU cores of this process. If OpenMP binds threads to places (OMP_PROC_BIND, OMP_PLACES), the
// affinity mask of a thread contains only the place of that thread.
#include <sched.h>

namespace choir {

/// The cores given to this process: its affinity mask, or the union of all places if OpenMP binds
/// threads.
cpu_set_t own_cores();
/// The number of own_cores(), at least 1.
int usable_cores();
/// Threads of a rank that shares `cores` with `ranks` - 1 others: at least 1, and at most
/// OMP_THREAD_LIMIT, because a larger team would be cut down to that limit.
int threads_of_rank(int cores, int ranks);

/// Cores on which an OpenMP team of the calling thread may run: own_cores(), or fewer if its
/// threads are bound, possibly to cores that another process uses too.
cpu_set_t team_cores();

}  // namespace choir
