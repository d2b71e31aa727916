#pragma once
// What the operating system says about this process.
#include <cstdint>

namespace choir {

/// Resident bytes now, 0 where /proc does not tell.
std::int64_t resident_bytes();

}  // namespace choir
