#include "choir/core/regular_file.hpp"

#include "choir/core/error.hpp"

namespace choir {

std::string unusual_kind(mode_t mode) {
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void require_regular(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;  // the caller that opens it reports the error
  const std::string kind = unusual_kind(status.st_mode);
  if (!kind.empty())
    throw StorageError(fmt::format("'{}' is {}, not a file", path, kind),
                       "move it away: a file is expected there, or nothing");
}

}  // namespace choir
