#include "choir/device/offload_memory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

[[noreturn]] void fail(const std::string& doing, const std::string& directory,
                       const std::string& reason) {
  throw StorageError(
      fmt::format("parallel.offload: cannot {} a file in {}: {}", doing, directory, reason),
      "set parallel.offload_dir to a directory of a local disk with room for it, spread the state "
      "over more ranks (parallel.zero), or set parallel.offload to \"none\"");
}

[[noreturn]] void fail(const std::string& doing, const std::string& directory, int error) {
  fail(doing, directory, std::string(std::strerror(error)));
}

double free_bytes(int descriptor) {
  struct statvfs space {};
  if (::fstatvfs(descriptor, &space) != 0) return 0;
  return static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
}

}  // namespace

OffloadMemory OffloadMemory::on_host(Device& device, std::size_t bytes) {
  OffloadMemory memory;
  memory.place_ = MemoryPlace::host;
  memory.bytes_ = bytes;
  if (device.kind() == DeviceKind::null)
    memory.planned_ = Buffer(device, bytes);
  else
    memory.host_ = HostBuffer(device, bytes);
  memory.data_ = static_cast<std::byte*>(device.kind() == DeviceKind::null ? memory.planned_.data()
                                                                           : memory.host_.data());
  return memory;
}

OffloadMemory OffloadMemory::in_file(Device& device, std::size_t bytes,
                                     const std::string& directory) {
  OffloadMemory memory;
  memory.place_ = MemoryPlace::file;
  memory.bytes_ = bytes;
  if (bytes == 0) return memory;
  if (device.kind() == DeviceKind::null) {
    memory.planned_ = Buffer(device, bytes);
    memory.data_ = static_cast<std::byte*>(memory.planned_.data());
    return memory;
  }
  memory.open(directory);
  memory.reserve();
  void* const mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor_, 0);
  if (mapped == MAP_FAILED) fail("map", directory, errno);
  memory.data_ = static_cast<std::byte*>(mapped);
  return memory;
}

OffloadMemory::~OffloadMemory() {
  if (descriptor_ < 0) return;
  if (data_ != nullptr) ::munmap(data_, bytes_);
  ::close(descriptor_);
}

OffloadMemory& OffloadMemory::operator=(OffloadMemory&& other) noexcept {
  std::swap(place_, other.place_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(planned_, other.planned_);
  std::swap(host_, other.host_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(directory_, other.directory_);
  return *this;
}

// If the file system does not support files without a name, the name is removed at once.
void OffloadMemory::open(const std::string& directory) {
  directory_ = directory;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail("make", directory, error.value());
  descriptor_ = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor_ >= 0) return;
  std::string name = directory + "/choir-offload-XXXXXX";
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail("make", directory, errno);
  if (::unlink(name.c_str()) != 0) fail("unlink", directory, errno);
}

// The limit and the free space are checked first. Beyond the limit of the process the system would
// end the program, and a disk that is too small would be filled before the failure shows.
void OffloadMemory::reserve() const {
  const double free = free_bytes(descriptor_);
  const std::string what = fmt::format(
      "reserve {} ({} free) for", format_bytes(static_cast<double>(bytes_)), format_bytes(free));
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < bytes_)
    fail(what, directory_,
         fmt::format("files are limited to {} (ulimit -f)",
                     format_bytes(static_cast<double>(limit.rlim_cur))));
  int error = free < static_cast<double>(bytes_) ? ENOSPC : EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes_));
  if (error != 0) fail(what, directory_, error);
}

void OffloadMemory::read(void* to, std::size_t offset, std::size_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(descriptor_, at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("read", directory_, n < 0 ? errno : EIO);
    const auto done = static_cast<std::size_t>(n);
    at += done, offset += done, bytes -= done;
  }
}

void OffloadMemory::write(const void* from, std::size_t offset, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(descriptor_, at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("write", directory_, n < 0 ? errno : EIO);
    const auto done = static_cast<std::size_t>(n);
    at += done, offset += done, bytes -= done;
  }
}

void OffloadMemory::rest() const {
  if (descriptor_ >= 0) ::madvise(data_, bytes_, MADV_DONTNEED);
}

bool is_memory_file_system(const std::string& directory) {
  struct statfs system {};
  return ::statfs(directory.c_str(), &system) == 0 &&
         (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

}  // namespace choir
