#pragma once
// A pipeline schedule as text: one row a stage, time to the right. Pure and local.
#include <string>

#include "choir/parallel/schedule_simulation.hpp"

namespace choir {

/// Every computation as F, B or W with its micro-batch (and chunk a, b, c ... if there are
/// several), as long as it takes; '.' is idle time:
///
///     0 F0 F1 ......B0----F2 B1----...B2----
///     1 ...F0 B0----F1 B1----F2 B2----......
///     makespan 12, bubble 25.0 %, live activations 2 1
///
/// The shortest computation gets the room of its label. If rows would pass `width` columns, time is
/// compressed and what no longer fits loses its number, then its mark.
std::string draw(const Schedule& schedule, const Simulation& simulation, int width = 160);

}  // namespace choir
