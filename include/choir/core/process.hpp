#pragma once
// What the operating system says about this process and the machine it runs on.
#include <cstdint>
#include <string>

namespace choir {

/// The name of this machine.
std::string host_name();

/// Resident bytes now, 0 where /proc does not tell.
std::int64_t resident_bytes();

/// Someone looks at what this process writes to stdout. A launcher may give its processes terminals
/// of their own while its own output goes to a file: then its stdout decides.
bool stdout_is_terminal();

}  // namespace choir
