#pragma once
// The cores of this process. Where OpenMP binds threads to places (OMP_PROC_BIND, OMP_PLACES), the
// affinity mask of a thread tells its own place alone.
#include <sched.h>

namespace choir {

/// Cores that this process was given: its affinity mask; of all places where threads are bound.
cpu_set_t own_cores();
/// How many they are, at least 1.
int usable_cores();

/// Cores that an OpenMP team of the calling thread may run on: own_cores(), or fewer where its
/// threads are bound, perhaps those of another process, too.
cpu_set_t team_cores();

}  // namespace choir
