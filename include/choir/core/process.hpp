#pragma once
// Properties of this process and of its machine, as reported by the operating system.
#include <cstdint>
#include <string>

namespace choir {

/// The name of this machine.
std::string host_name();

/// Resident bytes at present, or 0 if /proc does not report them.
std::int64_t resident_bytes();

/// True if somebody sees what this process writes to stdout. A launcher may give its processes
/// terminals although its own output is redirected to a file; then the launcher's stdout decides.
bool stdout_is_terminal();

}  // namespace choir
