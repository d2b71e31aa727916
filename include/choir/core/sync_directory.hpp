#pragma once
// Makes renames durable.
#include <string>

namespace choir {

/// After the return, new files and renames in `directory` ("" is the current one) are on disk. File
/// systems that cannot sync a directory are assumed to rename synchronously. Throws StorageError.
/// Local.
void sync_directory(const std::string& directory);

}  // namespace choir
