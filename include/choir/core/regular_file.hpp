#pragma once
// Checks that a name in a run directory is a regular file. Opening a pipe would block for ever, and
// a device never ends.
#include <sys/stat.h>

#include <string>

namespace choir {

/// "a pipe", "a folder" ...; "" for a regular file.
std::string unusual_kind(mode_t mode);

/// Throws StorageError if something other than a regular file (or a link to one) has this name. The
/// name may be free. Opens nothing. Local.
void require_regular(const std::string& path);

}  // namespace choir
