#include "choir/core/sync_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "choir/core/error.hpp"

namespace choir {

void sync_directory(const std::string& directory) {
  const char* path = directory.empty() ? "." : directory.c_str();
  const int descriptor = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int failed = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) {
    failed = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    if (failed == EINVAL || failed == EOPNOTSUPP) failed = 0;
  }
  if (failed != 0)
    throw StorageError(
        "cannot sync the directory '" + std::string(path) + "': " + std::strerror(failed),
        "check the file system and its free space");
}

}  // namespace choir
