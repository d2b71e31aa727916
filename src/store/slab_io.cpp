#include "src/store/slab_io.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/quantities.hpp"
#include "src/store/encoding.hpp"

namespace choir {
namespace {

// Small enough to stay in the cache between checksum and copy, large enough to amortise the call.
constexpr std::int64_t kHostChunk = 1 << 20;
constexpr std::int64_t kDeviceChunk = 4 << 20;

[[noreturn]] void fail(const std::string& doing, const std::string& path, int error) {
  if (error == ELOOP)
    throw StorageError(
        fmt::format("'{}' is a link, and files are never written through links", path),
        "move it away");
  throw StorageError(fmt::format("cannot {} {}: {}", doing, path, std::strerror(error)),
                     storage_cure(error));
}

/// The same for files that are only read.
[[noreturn]] void fail_to_read(const std::string& doing, const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) fail(doing, path, error);
  throw UnreadableError(doing, path, error);
}

std::string cure_of_reading(int error) {
  if (error == EACCES || error == EPERM)
    return "let this user read it (ls -l shows its owner and permissions), or move it away";
  return "check the file system, or move it away";
}

std::uint32_t moved_on(std::uint32_t crc, std::int64_t bytes) {
  return crc32c_combine(crc, 0, static_cast<std::uint64_t>(bytes));
}

/// Calls `action(host pointer, bytes, offset in the tensor)` on chunks of a piece.
struct Chunks {
  const StoredTensor& tensor;
  std::int64_t width = static_cast<std::int64_t>(size_of(tensor.dtype));
  bool produced = static_cast<bool>(tensor.produce);
  bool staged = produced || (tensor.device != nullptr && !tensor.device->host_visible());
  std::vector<char> staging{};

  template <class Action>
  void over(const StoredPiece& piece, Action&& action) {
    const std::int64_t bytes = piece.count * width;
    const std::int64_t step = staged ? kDeviceChunk : kHostChunk;
    if (staged) staging.resize(static_cast<std::size_t>(std::min(step, kDeviceChunk)));
    for (std::int64_t done = 0; done < bytes; done += step) {
      const std::int64_t now = std::min(step, bytes - done);
      char* own = produced ? nullptr : static_cast<char*>(piece.data) + done;
      action(own, staged ? staging.data() : own, now, piece.first * width + done);
    }
  }
};

void read_converted(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                    const ByteProgress& progress) {
  const Encoding from = encoding_of(record.dtype), to = encoding_of(tensor.dtype);
  const bool staged = tensor.device != nullptr && !tensor.device->host_visible();
  constexpr std::int64_t kElements = kDeviceChunk / 8;
  std::vector<std::byte> stored(static_cast<std::size_t>(encoded_bytes(from, kElements)));
  std::vector<std::byte> made(staged ? static_cast<std::size_t>(encoded_bytes(to, kElements))
                                     : std::size_t{0});
  for (const StoredPiece& piece : tensor.pieces)
    for (std::int64_t at = 0; at < piece.count; at += kElements) {
      const std::int64_t count = std::min(kElements, piece.count - at);
      const auto bytes = static_cast<std::size_t>(encoded_bytes(to, count));
      auto* const own = static_cast<std::byte*>(piece.data) + encoded_bytes(to, at);
      file.read_at(stored.data(), encoded_bytes(from, count),
                   record.offset + encoded_bytes(from, piece.first + at));
      if (const std::int64_t misfit =
              convert(stored.data(), from, staged ? made.data() : own, to, count);
          misfit >= 0)
        throw StorageError(
            fmt::format("{}: element {} is stored as {} and too large for {}", tensor.name,
                        piece.first + at + misfit, name_of(record.dtype), name_of(tensor.dtype)),
            "load it in the type in which it is stored");
      if (staged) tensor.device->copy_from_host(own, made.data(), bytes);
      if (progress) progress(static_cast<std::int64_t>(bytes));
    }
}

}  // namespace

UnreadableError::UnreadableError(const std::string& doing, const std::string& path, int number)
    : StorageError(fmt::format("cannot {} {}: {}", doing, path, std::strerror(number)),
                   cure_of_reading(number)) {}

File::File(const std::string& path, Mode mode) : path_(path) {
  if (const int why = reopen(mode); why != 0) {
    if (mode == Mode::read) fail_to_read("open", path_, why);
    fail(mode == Mode::create ? "make" : "open", path_, why);
  }
  require_regular_file();
}

File::File(const std::string& path, Mode mode, std::int64_t bytes) : path_(path) {
  constexpr double kLate = 60;  // seconds; Linux caches attributes of folders on NFS this long
  const double until = now_seconds() + kLate;
  for (;;) {
    const int why = reopen(mode);
    struct stat status {};
    if (why == 0 && ::fstat(descriptor_, &status) == 0 && status.st_size == bytes) break;
    const bool late = now_seconds() > until;
    if (why != 0 && (late || (why != ENOENT && why != ESTALE))) {
      if (mode == Mode::read) fail_to_read("open", path_, why);
      fail("open", path_, why);
    }
    if (late) {
      ::close(descriptor_);
      throw StorageError(
          fmt::format("{} has {} bytes after {} were written", path_, status.st_size, bytes),
          "check the file system: it lost bytes that it had confirmed");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  require_regular_file();
}

int File::reopen(Mode mode) {
  const int flags = mode == Mode::read    ? O_RDONLY
                    : mode == Mode::write ? O_WRONLY
                                          : O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW;
  if (descriptor_ >= 0) ::close(descriptor_);
  // O_NONBLOCK opens a pipe without waiting for its other end, so that it can be refused.
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  return descriptor_ < 0 ? errno : 0;
}

void File::require_regular_file() {
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const std::string kind = known ? unusual_kind(status.st_mode) : "";
  if (kind.empty()) return;
  ::close(descriptor_);
  throw StorageError(fmt::format("{} is {}, not a file", path_, kind), "move it away");
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::close() {
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail("close", path_, errno);
}

std::int64_t File::bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("look at", path_, errno);
  return status.st_size;
}

void File::write_at(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(descriptor_, from, static_cast<std::size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("write", path_, n < 0 ? errno : EIO);
    from += n, offset += n, bytes -= n;
  }
}

void File::read_at(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_read("read", path_, errno);
    if (n == 0) throw StorageError(fmt::format("{} ends at byte {}", path_, offset));
    to += n, offset += n, bytes -= n;
  }
}

void File::reserve(std::int64_t bytes) const {
  if (bytes <= 0) return;
  int error = 0;
  do {
    error = ::fallocate(descriptor_, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  struct statvfs space {};
  const bool known = ::fstatvfs(descriptor_, &space) == 0;
  const double free_bytes = known ? static_cast<double>(space.f_bavail) * space.f_frsize : 0;
  if ((error == EOPNOTSUPP || error == ENOSYS) && known)
    error = free_bytes < static_cast<double>(bytes) ? ENOSPC : 0;
  if (error == 0) return;
  fail(fmt::format("reserve {} ({} free) for", format_bytes(static_cast<double>(bytes)),
                   format_bytes(free_bytes)),
       path_, error);
}

void File::sync() const {
  int result = 0;
  do {
    result = ::fsync(descriptor_);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail("bring to the disk", path_, errno);
}

void File::forget() const {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

double File::resident_share() const {
  const auto size = static_cast<std::size_t>(bytes());
  if (size == 0) return 0;
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) fail("map", path_, errno);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((size + page - 1) / page);
  const bool known = ::mincore(mapped, size, resident.data()) == 0;
  ::munmap(mapped, size);
  const auto there = std::count_if(resident.begin(), resident.end(), [](auto b) { return b & 1u; });
  return known ? static_cast<double>(there) / static_cast<double>(resident.size()) : 1;
}

std::uint32_t write_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                           const ByteProgress& progress) {
  Chunks chunks{tensor};
  const std::int64_t total = record.bytes();
  std::uint32_t share = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    std::uint32_t crc = 0;
    chunks.over(piece, [&](char* own, char* host, std::int64_t bytes, std::int64_t at) {
      if (chunks.produced)
        tensor.produce(at / chunks.width, bytes / chunks.width, host);
      else if (host != own)
        tensor.device->copy_to_host(host, own, static_cast<std::size_t>(bytes));
      crc = crc32c(host, static_cast<std::size_t>(bytes), crc);
      file.write_at(host, bytes, record.offset + at);
      if (progress) progress(bytes);
    });
    const std::int64_t end = (piece.first + piece.count) * chunks.width;
    if (piece.count > 0) share ^= moved_on(crc, total - end);
  }
  return share;
}

void read_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                 const ByteProgress& progress) {
  if (record.dtype != tensor.dtype) return read_converted(file, record, tensor, progress);
  Chunks chunks{tensor};
  for (const StoredPiece& piece : tensor.pieces)
    chunks.over(piece, [&](char* own, char* host, std::int64_t bytes, std::int64_t at) {
      file.read_at(host, bytes, record.offset + at);
      if (host != own) tensor.device->copy_from_host(own, host, static_cast<std::size_t>(bytes));
      if (progress) progress(bytes);
    });
}

void require_borders(const File& file, const TensorRecord& record, const StoredTensor& tensor) {
  constexpr std::int64_t kBorder = 64;
  // pieces of a tensor; tensors divided by columns have thousands
  constexpr std::size_t kMost = 64;
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const bool staged = tensor.device != nullptr && !tensor.device->host_visible();
  std::array<char, kBorder> wanted{}, found{};
  const std::size_t apart = std::max<std::size_t>(1, tensor.pieces.size() / kMost);
  for (std::size_t i = 0; i < tensor.pieces.size(); i += apart) {
    const StoredPiece& piece = tensor.pieces[i];
    const std::int64_t bytes = piece.count * width, border = std::min(kBorder, bytes);
    for (const std::int64_t at : {std::int64_t{0}, bytes - border}) {
      const char* own = tensor.produce ? nullptr : static_cast<const char*>(piece.data) + at;
      if (tensor.produce)
        tensor.produce(piece.first + at / width, border / width, wanted.data());
      else if (staged)
        tensor.device->copy_to_host(wanted.data(), own, static_cast<std::size_t>(border));
      else
        std::copy_n(own, border, wanted.data());
      file.read_at(found.data(), border, record.offset + piece.first * width + at);
      if (!std::equal(wanted.data(), wanted.data() + border, found.data()))
        throw StorageError(
            fmt::format("{} contains other values of {} than were written, at element {}",
                        file.path(), tensor.name, piece.first + at / width),
            "the file system lost bytes that ranks wrote next to each other: mount it with locks, "
            "or "
            "save to another one");
    }
  }
}

void share_pieces(const StoredTensor& tensor, Communicator& sharers) {
  Chunks chunks{tensor};
  for (const StoredPiece& piece : tensor.pieces)
    chunks.over(piece, [&](char* own, char* host, std::int64_t size, std::int64_t) {
      const auto bytes = static_cast<std::size_t>(size);
      const bool reads = sharers.rank() == 0;
      if (host != own && reads) tensor.device->copy_to_host(host, own, bytes);
      sharers.broadcast(host, bytes, 0);
      if (host != own && !reads) tensor.device->copy_from_host(own, host, bytes);
    });
}

std::vector<std::uint32_t> crc_shares(const File& file, const std::vector<FileRegion>& regions,
                                      std::int64_t first, std::int64_t last,
                                      const ByteProgress& progress) {
  std::vector<char> chunk(static_cast<std::size_t>(kHostChunk));
  std::vector<std::uint32_t> shares(regions.size(), 0);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const FileRegion& region = regions[i];
    const std::int64_t from = std::max(first, region.offset);
    const std::int64_t to = std::min(last, region.offset + region.bytes);
    std::uint32_t crc = 0;
    for (std::int64_t at = from; at < to; at += kHostChunk) {
      const std::int64_t bytes = std::min(kHostChunk, to - at);
      file.read_at(chunk.data(), bytes, at);
      crc = crc32c(chunk.data(), static_cast<std::size_t>(bytes), crc);
      if (progress) progress(bytes);
    }
    if (to > from) shares[i] = moved_on(crc, region.offset + region.bytes - to);
  }
  return shares;
}

std::vector<std::uint32_t> structure_crcs(const File& file,
                                          const std::vector<FileRegion>& regions) {
  std::vector<std::uint32_t> crcs(regions.size(), 0);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].tensor >= 0) continue;
    const std::int64_t end = regions[i].offset + regions[i].bytes;
    crcs[i] = crc_shares(file, {regions[i]}, regions[i].offset, end, {})[0];
  }
  return crcs;
}

}  // namespace choir
