#pragma once
// The cores of this process. Where OpenMP binds threads to places (OMP_PROC_BIND, OMP_PLACES), the
// affinity mask of a thread tells its own place alone.
#include <sched.h>

namespace choir {

/// Cores that this process was given: its affinity mask; of all places where threads are bound.
cpu_set_t own_cores();
/// How many they are, at least 1.
int usable_cores();
/// Threads of a rank that shares `cores` with `ranks` - 1 others: at least 1, and no more than
/// OMP_THREAD_LIMIT, beyond which a team is smaller than it was asked to be.
int threads_of_rank(int cores, int ranks);

/// Cores that an OpenMP team of the calling thread may run on: own_cores(), or fewer where its
/// threads are bound, perhaps those of another process, too.
cpu_set_t team_cores();

}  // namespace choir
