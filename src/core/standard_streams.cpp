#include "choir/core/standard_streams.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace choir {
namespace {

/// True if text was discarded. The streams of the C library belong to the whole process, and so
/// does this flag.
std::atomic<bool>& anything_discarded() {
  static std::atomic<bool> discarded{false};
  return discarded;
}

bool means_no_reader(int error, int descriptor) {
  if (error == EPIPE || error == ECONNRESET) return true;
  struct stat what {};
  // EIO means a terminal that was hung up; for a regular file it would mean a bad disk.
  return error == EIO && fstat(descriptor, &what) == 0 && S_ISCHR(what.st_mode);
}

int descriptor_of(void* cookie) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
}

ssize_t write_or_discard(void* cookie, const char* text, std::size_t size) {
  const int descriptor = descriptor_of(cookie);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t written = ::write(descriptor, text + done, size - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      if (written == 0 || !means_no_reader(errno, descriptor)) break;
      anything_discarded() = true;
      return static_cast<ssize_t>(size);
    }
  }
  return static_cast<ssize_t>(done);  // a result below `size` means an error, which is in errno
}

/// A stream of the C library over `descriptor`; nullptr if there is no memory for it.
std::FILE* stream_over(int descriptor, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write_or_discard;
  auto* const cookie = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  std::FILE* const stream = fopencookie(cookie, "w", functions);
  if (stream != nullptr) std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

}  // namespace

void outlive_readers() {
  std::fflush(nullptr);
  const int buffering = isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF;
  if (std::FILE* const out = stream_over(STDOUT_FILENO, buffering)) stdout = out;
  if (std::FILE* const err = stream_over(STDERR_FILENO, _IONBF)) stderr = err;
}

bool report_lost_reader() {
  static std::atomic<bool> reported{false};
  return anything_discarded() && !reported.exchange(true);
}

}  // namespace choir
