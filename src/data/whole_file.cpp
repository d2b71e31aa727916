#include "src/data/whole_file.hpp"

#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/sync_directory.hpp"
#include "src/data/posix_file.hpp"

namespace choir {

std::string read_whole_file(const std::string& path) {
  const PosixFile file = PosixFile::for_reading(path);
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(bytes.data(), bytes.size(), 0);
  return bytes;
}

void write_whole_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  {
    PosixFile file = PosixFile::for_writing(temporary);
    file.write_at(bytes.data(), bytes.size(), 0);
    file.sync();
  }
  rename_file(temporary, path);
  sync_directory(std::filesystem::path(path).parent_path());
}

void rename_file(const std::string& from, const std::string& to) {
  std::error_code failure;
  std::filesystem::rename(from, to, failure);
  if (failure)
    throw StorageError(fmt::format("cannot rename '{}' to '{}': {}", from, to, failure.message()),
                       "check the free space and the permissions of the folder");
}

}  // namespace choir
