#pragma once
// Small files read and written in one piece.
#include <string>
#include <string_view>

namespace choir {

/// Local. Throws DataError.
std::string read_whole_file(const std::string& path);
/// Local. Under a temporary name, synced, renamed: there is never half of it. Throws StorageError.
void write_whole_file(const std::string& path, std::string_view bytes);
/// Local. Moves a finished file to its name. Throws StorageError.
void rename_file(const std::string& from, const std::string& to);

}  // namespace choir
