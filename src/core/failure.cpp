#include "choir/core/failure.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

namespace choir {
namespace {

constexpr const char* kNoStdout = "standard output could not be written";
constexpr const char* kElsewhere =
    "is its disk full, or over a limit? the output is not complete: send it elsewhere";

}  // namespace

std::string storage_cure(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or lower checkpoint.keep, or move run.dir to a larger file system";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or lower checkpoint.keep";
    case EACCES:
    case EROFS:
    case EPERM:
      return "make it writable (lsattr shows flags that chmod does not), or choose another run.dir";
    case ENAMETOOLONG:
      return "choose a shorter name: most file systems take 255 bytes between two '/'";
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
      return "something else has that name: move it away, or choose another run.dir";
    default:
      return {};
  }
}

Failure failure_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error))
    return {own->code(), own->what(), own->hint(), own->where()};
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return {ExitCode::storage, file->what(), storage_cure(file->code().value()), {}};
  // The printing library throws when the buffer could not be emptied.
  if (const auto* system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && std::ferror(stdout) != 0)
    return {ExitCode::storage,
            fmt::format("{}: {}", kNoStdout, std::strerror(system->code().value())),
            kElsewhere,
            {}};
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return {ExitCode::other,
            "out of memory: the system gives no more",
            "lower train.micro_batch_size or model.block_size, or raise the limit (ulimit -v)",
            {}};
  return {ExitCode::other, error.what(), {}, {}};
}

std::string flush_stdout() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return {};
  return fmt::format("{}: {}\n  -> {}", kNoStdout,
                     errno != 0 ? std::strerror(errno) : "an earlier write failed", kElsewhere);
}

}  // namespace choir
