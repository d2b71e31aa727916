#pragma once
// What a file compressed by gzip unpacks to, readable at any place.
#include <string>

#include "src/store/file_window.hpp"

namespace choir {

/// The file itself when its first bytes are not gzip's; else a temporary file without a name, which
/// goes with its last reader. StorageError when it is damaged, unpacks to more than a hundred times
/// its size, or the program was built without libarchive.
FileWindow unpacked(const std::string& path);

}  // namespace choir
