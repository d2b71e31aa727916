#include "src/data/audio/archive_reader.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

#include "choir_features.hpp"
#include "src/core/file.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/vocabulary/utf8.hpp"

#ifdef CHOIR_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace choir {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

constexpr std::size_t kLongestLine = std::size_t{16} << 20;

// Most bytes that a file of this size may unpack to: speech never compresses to a hundredth, and a
// file that claims to must not fill the memory. The size of a pipe is unknown, so it has no limit.
std::int64_t most_from(const std::string& path) {
  constexpr std::int64_t kAlways = std::int64_t{64} << 20, kRatio = 100;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::numeric_limits<std::int64_t>::max();
  return kAlways + kRatio * status.st_size;
}

[[noreturn]] void refuse_bomb(const std::string& path) {
  throw AudioError(AudioFault::unreadable,
                   fmt::format("'{}' holds more than a hundred times its own size", path),
                   "unpack it and check its contents");
}

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

// Filters are enabled by name, because "all" would run external programs for some.
void support_compression(archive* handle) {
  archive_read_support_filter_gzip(handle);
  archive_read_support_filter_bzip2(handle);
  archive_read_support_filter_compress(handle);
  archive_read_support_filter_lz4(handle);
  archive_read_support_filter_lzma(handle);
  archive_read_support_filter_xz(handle);
  archive_read_support_filter_zstd(handle);
}

// Refuses nested compression, which the library unpacks up to 25 times.
void require_packed_once(const std::string& path, archive* handle) {
  if (archive_filter_count(handle) > 2)  // the last is the file itself
    throw AudioError(AudioFault::unreadable, fmt::format("'{}' is compressed twice", path),
                     "unpack it once");
}

[[noreturn]] void damaged(const std::string& path, archive* handle) {
  const char* text = archive_error_string(handle);
  throw AudioError(AudioFault::unreadable, fmt::format("'{}' is damaged: {}", path,
                                                       text != nullptr ? text : "unknown error"));
}

}  // namespace

struct ArchiveReader::State {
  std::string path, name;
  Handle handle;
  std::int64_t most = 0;  // most bytes that it may unpack to
};

ArchiveReader::ArchiveReader(const std::string& path) : state_(std::make_unique<State>()) {
  require_readable(path);
  state_->path = path;
  state_->handle.reset(archive_read_new());
  archive* handle = state_->handle.get();
  support_compression(handle);
  archive_read_support_format_tar(handle);
  archive_read_support_format_empty(handle);
  if (archive_read_open_filename(handle, path.c_str(), kPiece) != ARCHIVE_OK) damaged(path, handle);
  require_packed_once(path, handle);
  state_->most = most_from(path);
}

bool ArchiveReader::next() {
  archive_entry* entry = nullptr;
  archive* handle = state_->handle.get();
  for (;;) {
    const int got = archive_read_next_header(handle, &entry);
    if (got == ARCHIVE_EOF) return false;
    if (got == ARCHIVE_RETRY) continue;
    if (got != ARCHIVE_OK && got != ARCHIVE_WARN) damaged(state_->path, handle);
    if (archive_filter_bytes(handle, 0) > state_->most || archive_entry_size(entry) > state_->most)
      refuse_bomb(state_->path);
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
    if (std::ssize(bytes) > state_->most) refuse_bomb(state_->path);
  }
}

struct LineReader::State {
  Handle handle;
  std::int64_t most = 0, taken = 0;  // bytes that it may unpack to, and bytes unpacked
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
    taken += got;
    if (taken > most) refuse_bomb(path);
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
  require_packed_once(path, handle);
  state_->most = most_from(path);
}
#else
struct ArchiveReader::State {};
namespace {
[[noreturn]] void absent(const std::string& path) {
  throw DeckError(
      fmt::format("'{}' cannot be read: this program was built without libarchive", path),
      "install libarchive-dev and build again, or unpack the archive and name its "
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

/// An array need not have line ends, so that it is read in pieces, not in lines.
void LineReader::open_array() {
  State& s = *state_;
  constexpr std::size_t kBeginning = 4096;
  while (s.pending.size() - s.at < kBeginning && !s.ended) s.fill(path_);
  std::string_view begin = std::string_view(s.pending).substr(s.at);
  begin.remove_prefix(static_cast<std::size_t>(byte_order_mark(begin)));
  if (!JsonArrayReader::begins(begin)) return;
  const auto next_piece = [this](std::string& piece) {
    State& state = *state_;
    state.pending.clear();  // it was the piece before
    state.at = 0;
    if (!state.ended) state.fill(path_);
    piece = state.pending;
    return !piece.empty();
  };
  array_ = std::make_unique<JsonArrayReader>(std::string(begin), next_piece, path_);
}

bool LineReader::next(std::string& line) {
  if (number_ == 0 && array_ == nullptr) open_array();
  if (array_ == nullptr) return next_line(line);
  const bool found = array_->next(line);
  number_ = array_->number();
  return found;
}

bool LineReader::next_line(std::string& line) {
  State& s = *state_;
  std::size_t end = s.pending.find('\n', s.at);
  while (end == std::string::npos && !s.ended) {
    const std::size_t seen = s.pending.size() - s.at;
    if (seen > kLongestLine)
      throw AudioError(AudioFault::unreadable,
                       fmt::format("line {} of '{}' has more than {} MiB", number_ + 1, path_,
                                   kLongestLine >> 20),
                       "a manifest has one line of JSON per utterance");
    s.fill(path_);
    end = s.pending.find('\n', seen);
  }
  if (end == std::string::npos && s.at == s.pending.size()) return false;
  ++number_;
  const std::size_t stop = end == std::string::npos ? s.pending.size() : end;
  line.assign(s.pending, s.at, stop - s.at);
  if (number_ == 1) line.erase(0, static_cast<std::size_t>(byte_order_mark(line)));
  if (line.ends_with('\r')) line.pop_back();
  s.at = end == std::string::npos ? stop : end + 1;
  return true;
}

std::string LineReader::place() const {
  return fmt::format("{}:{}", path_, number_);
}

std::string read_lines(const std::string& path) {
  LineReader lines(path);
  std::string all;
  for (std::string line; lines.next(line);) all += line + "\n";
  return all;
}

}  // namespace choir
