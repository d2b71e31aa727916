#pragma once
// Random access to the contents of a file that may be compressed by gzip.
#include <string>

#include "src/store/file_window.hpp"

namespace choir {

/// The file itself if it is not compressed; else a temporary file without a name, which exists
/// until its last reader is destroyed. Throws StorageError if the file is damaged, unpacks to more
/// than a hundred times its size, or if the program was built without libarchive.
FileWindow unpacked(const std::string& path);

}  // namespace choir
