#include "src/store/torch/unpacked_file.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "choir/core/error.hpp"
#include "choir_features.hpp"

#ifdef CHOIR_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace choir {
namespace {

bool is_gzip(const FileWindow& file) {
  return file.bytes() >= 2 && file.text_at(0, 2) == "\x1f\x8b";
}

#ifdef CHOIR_HAVE_ARCHIVE
struct Closer {
  void operator()(archive* a) const { archive_read_free(a); }
};

[[noreturn]] void damaged(const std::string& path, archive* handle) {
  const char* text = archive_error_string(handle);
  throw StorageError(
      fmt::format("'{}' is damaged: {}", path, text != nullptr ? text : "unknown error"));
}

// A temporary file whose name is removed at once, so that nothing remains however the program ends.
struct NamelessFile {
  NamelessFile() {
    name = (std::filesystem::temp_directory_path() / "choir_unpacked_").string() +
           std::string(6, 'X');  // the mark that mkstemp replaces
    const int made = ::mkstemp(name.data());
    if (made < 0)
      throw StorageError(fmt::format("cannot create a temporary file '{}'", name),
                         "set TMPDIR to a folder with free space");
    to = std::make_unique<File>(name, File::Mode::write);
    from = std::make_shared<File>(name, File::Mode::read);
    ::close(made);
    std::filesystem::remove(name);
  }
  std::string name;
  std::unique_ptr<File> to;
  std::shared_ptr<File> from;
};

FileWindow gunzipped(const std::string& path, std::int64_t packed_bytes) {
  constexpr std::int64_t kAlways = std::int64_t{64} << 20, kRatio = 100;
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::unique_ptr<archive, Closer> handle(archive_read_new());
  archive_read_support_filter_gzip(handle.get());
  archive_read_support_format_raw(handle.get());
  archive_entry* entry = nullptr;
  if (archive_read_open_filename(handle.get(), path.c_str(), kPiece) != ARCHIVE_OK ||
      archive_read_next_header(handle.get(), &entry) != ARCHIVE_OK)
    damaged(path, handle.get());
  if (archive_filter_count(handle.get()) > 2)  // the last filter is the file itself
    throw StorageError(fmt::format("'{}' is compressed twice", path), "unpack it once");
  NamelessFile file;
  std::vector<char> piece(kPiece);
  for (std::int64_t done = 0;;) {
    const la_ssize_t got = archive_read_data(handle.get(), piece.data(), piece.size());
    if (got < 0) damaged(path, handle.get());
    if (got == 0) break;
    if (done + got > kAlways + kRatio * packed_bytes)
      throw StorageError(
          fmt::format("'{}' unpacks to more than a hundred times its own size", path),
          "unpack it and inspect it");
    file.to->write_at(piece.data(), got, done);
    done += got;
  }
  return {file.from, path};
}
#else
FileWindow gunzipped(const std::string& path, std::int64_t) {
  throw StorageError(
      fmt::format("'{}' is compressed, and this program was built without libarchive", path),
      "gunzip it, or install libarchive-dev and build again");
}
#endif

}  // namespace

FileWindow unpacked(const std::string& path) {
  FileWindow file(path);
  return is_gzip(file) ? gunzipped(path, file.bytes()) : file;
}

}  // namespace choir
