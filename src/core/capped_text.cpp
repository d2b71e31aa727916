#include "choir/core/capped_text.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "choir/core/regular_file.hpp"

namespace choir {
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

}  // namespace choir
