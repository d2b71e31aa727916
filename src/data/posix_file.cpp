#include "src/data/posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/regular_file.hpp"
#include "choir/core/sync_directory.hpp"

namespace choir {
namespace {

// Linux transfers at most 2,147,479,552 bytes per call.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

[[noreturn]] void refuse_storage(const std::string& verb, const std::string& path) {
  throw StorageError(fmt::format("cannot {} '{}': {}", verb, path, std::strerror(errno)),
                     "check the free space, the quota and the permissions of the folder");
}

}  // namespace

PosixFile PosixFile::for_reading(const std::string& path) {
  // A pipe is opened without waiting for its other end, so that it can be refused.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw DataError(fmt::format("cannot open '{}': {}", path, std::strerror(errno)),
                    errno == ENOENT ? "check the path; 'choir prepare text' makes token files"
                                    : "check the permissions of the file");
  }
  PosixFile file(path, descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return file;
  if (const std::string kind = unusual_kind(status.st_mode); !kind.empty())
    throw DataError(
        fmt::format("'{}' is {}, not a file", path, kind),
        "data files are read repeatedly and at random positions: copy the data to a file");
  return file;
}

PosixFile PosixFile::for_writing(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  const int descriptor = ::open(path.c_str(), kFlags, 0644);
  if (descriptor < 0 && errno == ELOOP)
    throw StorageError(
        fmt::format("'{}' is a symbolic link; the program does not write through links", path),
        "move it away");
  if (descriptor < 0) refuse_storage("create", path);
  return {path, descriptor};
}

PosixFile PosixFile::temporary(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  const int descriptor = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) refuse_storage("create", path);
  return {path, descriptor};
}

PosixFile PosixFile::for_updating(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) refuse_storage("open", path);
  return {path, descriptor};
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t PosixFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0)
    throw DataError(fmt::format("cannot stat '{}': {}", path_, std::strerror(errno)));
  return status.st_size;
}

void PosixFile::read_at(void* to, std::size_t bytes, std::int64_t offset) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, at, std::min(bytes, kMostBytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw DataError(
          fmt::format("cannot read '{}' at byte {}: {}", path_, offset, std::strerror(errno)));
    if (got == 0) {
      throw DataError(fmt::format("'{}' ends at byte {}, {} bytes too early", path_, offset, bytes),
                      "was it changed while in use? copy or prepare it again");
    }
    at += got;
    offset += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void PosixFile::write_at(const void* from, std::size_t bytes, std::int64_t offset) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_, at, std::min(bytes, kMostBytes), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) refuse_storage("write", path_);
    at += put;
    offset += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

void PosixFile::sync() {
  if (::fsync(descriptor_) != 0) refuse_storage("sync", path_);
}

std::string read_whole_file(const std::string& path, std::int64_t most_mib) {
  const PosixFile file = PosixFile::for_reading(path);
  if (file.size() > most_mib << 20)
    throw DataError(fmt::format("'{}' has {} bytes, more than {} MiB", path, file.size(), most_mib),
                    "check that it is the right file");
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
