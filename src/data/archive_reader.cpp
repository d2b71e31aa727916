#include "src/data/archive_reader.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "choir/data/audio_error.hpp"
#include "choir_features.hpp"
#include "src/data/posix_file.hpp"

#ifdef CHOIR_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace choir {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

void require_readable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || ::access(path.c_str(), R_OK) != 0)
    throw AudioError(AudioFault::missing_file,
                     fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  if (S_ISDIR(status.st_mode))
    throw AudioError(AudioFault::unreadable, fmt::format("'{}' is a folder", path));
}

}  // namespace

#ifdef CHOIR_HAVE_ARCHIVE
namespace {

struct Closer {
  void operator()(archive* a) const { archive_read_free(a); }
};
using Handle = std::unique_ptr<archive, Closer>;

[[noreturn]] void damaged(const std::string& path, archive* handle) {
  const char* text = archive_error_string(handle);
  throw AudioError(AudioFault::unreadable, fmt::format("'{}' is damaged: {}", path,
                                                       text != nullptr ? text : "unknown error"));
}

}  // namespace

struct ArchiveReader::State {
  std::string path, name;
  Handle handle;
};

ArchiveReader::ArchiveReader(const std::string& path) : state_(std::make_unique<State>()) {
  require_readable(path);
  state_->path = path;
  state_->handle.reset(archive_read_new());
  archive* handle = state_->handle.get();
  archive_read_support_filter_all(handle);
  archive_read_support_format_tar(handle);
  archive_read_support_format_empty(handle);
  if (archive_read_open_filename(handle, path.c_str(), kPiece) != ARCHIVE_OK) damaged(path, handle);
}

bool ArchiveReader::next() {
  archive_entry* entry = nullptr;
  archive* handle = state_->handle.get();
  for (;;) {
    const int got = archive_read_next_header(handle, &entry);
    if (got == ARCHIVE_EOF) return false;
    if (got == ARCHIVE_RETRY) continue;
    if (got != ARCHIVE_OK && got != ARCHIVE_WARN) damaged(state_->path, handle);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr)
      continue;
    const char* name = archive_entry_pathname_utf8(entry);
    if (name == nullptr) name = archive_entry_pathname(entry);
    if (name == nullptr) continue;
    std::string_view view = name;
    while (view.starts_with("./")) view.remove_prefix(2);
    state_->name = view;
    return true;
  }
}

const std::string& ArchiveReader::name() const {
  return state_->name;
}

std::vector<char> ArchiveReader::read() {
  std::vector<char> bytes;
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kPiece);
    const la_ssize_t got = archive_read_data(state_->handle.get(), bytes.data() + before, kPiece);
    if (got < 0) damaged(state_->path, state_->handle.get());
    bytes.resize(before + static_cast<std::size_t>(got));
    if (got == 0) return bytes;
  }
}

struct LineReader::State {
  Handle handle;
  std::string pending;
  std::size_t at = 0;
  bool ended = false;

  void fill(const std::string& path) {
    pending.erase(0, at);
    at = 0;
    const std::size_t before = pending.size();
    pending.resize(before + kPiece);
    const la_ssize_t got = archive_read_data(handle.get(), pending.data() + before, kPiece);
    if (got < 0) damaged(path, handle.get());
    pending.resize(before + static_cast<std::size_t>(got));
    ended = got == 0;
  }
};

LineReader::LineReader(const std::string& path) : state_(std::make_unique<State>()), path_(path) {
  require_readable(path);
  state_->handle.reset(archive_read_new());
  archive* handle = state_->handle.get();
  archive_read_support_filter_gzip(handle);
  archive_read_support_format_raw(handle);
  archive_read_support_format_empty(handle);
  archive_entry* entry = nullptr;
  if (archive_read_open_filename(handle, path.c_str(), kPiece) != ARCHIVE_OK) damaged(path, handle);
  const int got = archive_read_next_header(handle, &entry);
  state_->ended = got == ARCHIVE_EOF;
  if (got != ARCHIVE_EOF && got != ARCHIVE_OK && got != ARCHIVE_WARN) damaged(path, handle);
}
#else
struct ArchiveReader::State {};
namespace {
[[noreturn]] void absent(const std::string& path) {
  throw DeckError(
      fmt::format("'{}' cannot be read: this program was built without libarchive", path),
      "install libarchive-dev and build again; or unpack the archive, and name its "
      "manifest as a plain file");
}
}  // namespace
ArchiveReader::ArchiveReader(const std::string& path) {
  absent(path);
}
bool ArchiveReader::next() {
  absent("archive");
}
const std::string& ArchiveReader::name() const {
  absent("archive");
}
std::vector<char> ArchiveReader::read() {
  absent("archive");
}

struct LineReader::State {
  explicit State(const std::string& path) : file(PosixFile::for_reading(path)) {}
  PosixFile file;
  std::int64_t taken = 0;
  std::string pending;
  std::size_t at = 0;
  bool ended = false;

  void fill(const std::string&) {
    pending.erase(0, at);
    at = 0;
    const auto here = std::min<std::int64_t>(kPiece, file.size() - taken);
    const std::size_t before = pending.size();
    pending.resize(before + static_cast<std::size_t>(here));
    file.read_at(pending.data() + before, static_cast<std::size_t>(here), taken);
    taken += here;
    ended = here == 0;
  }
};

LineReader::LineReader(const std::string& path) : path_(path) {
  require_readable(path);
  state_ = std::make_unique<State>(path);
  state_->fill(path);
  if (std::string_view(state_->pending).starts_with("\x1f\x8b")) absent(path);
}
#endif

ArchiveReader::~ArchiveReader() = default;
ArchiveReader::ArchiveReader(ArchiveReader&&) noexcept = default;
LineReader::~LineReader() = default;

bool LineReader::next(std::string& line) {
  State& s = *state_;
  std::size_t end = s.pending.find('\n', s.at);
  while (end == std::string::npos && !s.ended) {
    const std::size_t seen = s.pending.size() - s.at;
    s.fill(path_);
    end = s.pending.find('\n', seen);
  }
  if (end == std::string::npos && s.at == s.pending.size()) return false;
  ++number_;
  const std::size_t stop = end == std::string::npos ? s.pending.size() : end;
  line.assign(s.pending, s.at, stop - s.at);
  if (line.ends_with('\r')) line.pop_back();
  s.at = end == std::string::npos ? stop : end + 1;
  return true;
}

std::string LineReader::place() const {
  return fmt::format("{}:{}", path_, number_);
}

}  // namespace choir
