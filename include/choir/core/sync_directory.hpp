#pragma once
// Makes renames durable.
#include <string>

namespace choir {

/// Local. New files and renames in `directory` ("" is the current one) are on the disk when it
/// returns. File systems that cannot sync a directory rename synchronously, and are believed.
/// StorageError.
void sync_directory(const std::string& directory);

}  // namespace choir
