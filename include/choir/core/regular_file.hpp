#pragma once
// What stands under the names of a run directory may be anything: a pipe there blocks who opens it
// for ever, and a device never ends.
#include <sys/stat.h>

#include <string>

namespace choir {

/// "a pipe", "a folder" ...; "" for a regular file.
std::string unusual_kind(mode_t mode);

/// Local. StorageError where there is something else than a regular file (or a link to one) under
/// this name; nothing at all is right, too. Opens nothing.
void require_regular(const std::string& path);

}  // namespace choir
