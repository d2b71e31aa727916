#pragma once
// What the operating system says about this process.
#include <cstdint>

namespace choir {

/// Resident bytes now, 0 where /proc does not tell.
std::int64_t resident_bytes();

/// Someone looks at what this process writes to stdout. A launcher may give its processes terminals
/// of their own while its own output goes to a file: then its stdout decides.
bool stdout_is_terminal();

}  // namespace choir
