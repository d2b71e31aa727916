#pragma once
// Measures the current write rate of the file system of checkpoints with all ranks writing at once.
#include <cstdint>
#include <string>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Collective. Every rank writes `bytes` into a file of its own, in a folder with a random name
/// inside `folder` (beside it if it does not exist yet), syncs it to disk and removes it. Returns
/// bytes per second of all ranks together, by the time of the slowest; 0 if a rank failed: a later
/// save reports the reason.
double probe_write_rate(Communicator& world, const std::string& folder, std::int64_t bytes);

}  // namespace choir
