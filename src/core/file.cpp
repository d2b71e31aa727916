#include "src/core/file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/hints.hpp"

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

namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

/// Appends at most `most` bytes. Returns the errno of a read that failed, else 0.
int append_from(int descriptor, std::size_t most, std::string& text) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  while (text.size() < most) {
    const std::size_t before = text.size();
    const std::size_t piece = std::min(most - before, std::max(text.capacity() - before, kPiece));
    text.resize(before + piece);
    const ssize_t got = ::read(descriptor, text.data() + before, piece);
    const int fault = got < 0 ? errno : 0;
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (fault == EINTR) continue;
    if (got <= 0) return fault;
  }
  return 0;
}

std::string too_large(std::size_t bytes, std::size_t most_mib) {
  return fmt::format("has {} bytes, more than {} MiB", bytes, most_mib);
}

}  // namespace

CappedText read_capped(std::istream& file, std::size_t most_mib) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  const std::size_t most = most_mib << 20;
  CappedText read;
  std::string& text = read.text;
  while (file && text.size() <= most) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    file.read(text.data() + before, kPiece);
    text.resize(before + static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) read.fault = "cannot be read";
  if (text.size() > most) read.fault = fmt::format("has more than {} MiB", most_mib);
  return read;
}

std::string file_excess(const std::string& path, std::size_t most_mib) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto bytes = static_cast<std::size_t>(status.st_size);
  return bytes > most_mib << 20 ? too_large(bytes, most_mib) : "";
}

CappedText read_capped_file(const std::string& path, std::size_t most_mib, Pipes pipes) {
  const std::size_t most = most_mib << 20;
  CappedText read;
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int wait = pipes == Pipes::refused ? O_NONBLOCK : 0;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | wait));
  struct stat status {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) {
    read.fault = fmt::format("cannot be read: {}", std::strerror(errno));
    return read;
  }
  const std::string kind = unusual_kind(status.st_mode);
  const bool is_folder = S_ISDIR(status.st_mode);
  if (is_folder || (!kind.empty() && pipes == Pipes::refused)) {
    read.fault = fmt::format("is {}, not a file", kind);
    return read;
  }
  const bool sized = S_ISREG(status.st_mode) && status.st_size > 0;  // files of /proc have no size
  const auto bytes = sized ? static_cast<std::size_t>(status.st_size) : most + 1;
  if (sized && bytes > most) {
    read.fault = too_large(bytes, most_mib);
    return read;
  }
  if (sized) read.text.reserve(bytes);
  if (const int fault = append_from(file.number(), bytes, read.text); fault != 0)
    read.fault = fmt::format("cannot be read: {}", std::strerror(fault));
  if (read.text.size() > most) read.fault = fmt::format("has more than {} MiB", most_mib);
  return read;
}

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
                    errno == ENOENT ? advice_on_path(path, "check the path")
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

LineFile::LineFile(std::string path) : path_(std::move(path)), file_(path_) {
  check();
}

void LineFile::write(std::string_view line) {
  file_ << line << std::endl;
  check();
}

void LineFile::check() const {
  if (file_) return;
  throw StorageError(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)),
                     "name a file in an existing, writable folder");
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

std::string append_to_file(const std::string& path, std::string_view text) {
  try {
    require_regular(path);
  } catch (const Error& error) {
    return error.what();
  }
  const int file =
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return fmt::format("cannot write '{}': {}", path, std::strerror(errno));
  const auto written = ::write(file, text.data(), text.size());
  const int cause = written < 0 ? errno : ENOSPC;
  ::close(file);
  if (written == static_cast<ssize_t>(text.size())) return "";
  return fmt::format("cannot write '{}': {}", path, std::strerror(cause));
}

void rename_file(const std::string& from, const std::string& to) {
  std::error_code failure;
  std::filesystem::rename(from, to, failure);
  if (failure)
    throw StorageError(fmt::format("cannot rename '{}' to '{}': {}", from, to, failure.message()),
                       "check the free space and the permissions of the folder");
}

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
