#pragma once
// How fast the file system of checkpoints takes what all ranks write at once, just now.
#include <cstdint>
#include <string>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Collective. Every rank writes `bytes` into a file of its own, in a folder with a random name in
/// `folder`, or beside it where it does not exist yet; brings it to the disk and removes it. Bytes
/// a second of all ranks together, by the slowest; 0 when a rank could not: a save will say why.
double probe_write_rate(Communicator& world, const std::string& folder, std::int64_t bytes);

}  // namespace choir
