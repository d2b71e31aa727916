#include "src/data/sources/text_rows.hpp"

#include <memory>
#include <optional>
#include <string_view>

#include "choir/core/error.hpp"
#include "choir_features.hpp"
#include "src/core/file.hpp"
#include "src/data/vocabulary/utf8.hpp"

#ifdef CHOIR_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace choir {

#ifdef CHOIR_HAVE_ARCHIVE
namespace {

struct TarCloser {
  void operator()(archive* a) const { archive_read_free(a); }
};

/// The members of a tar, one after another.
class TarMembers {
 public:
  explicit TarMembers(const std::string& path) : path_(path), handle_(archive_read_new()) {
    static_cast<void>(PosixFile::for_reading(path));  // its errors are those of all other sources
    constexpr std::size_t kBlock = std::size_t{1} << 16;
    // Filters are enabled by name, because "all" would run external programs for some.
    archive_read_support_filter_gzip(handle_.get());
    archive_read_support_filter_zstd(handle_.get());
    archive_read_support_format_tar(handle_.get());
    archive_read_support_format_empty(handle_.get());
    if (archive_read_open_filename(handle_.get(), path.c_str(), kBlock) != ARCHIVE_OK) refuse();
    if (archive_filter_count(handle_.get()) > 2)  // the last is the file itself
      throw DataError(fmt::format("'{}' is packed twice", path), "unpack it once");
  }

  bool next() {
    for (;;) {
      archive_entry* entry = nullptr;
      const int got = archive_read_next_header(handle_.get(), &entry);
      if (got == ARCHIVE_EOF) return false;
      if (got == ARCHIVE_RETRY) continue;
      if (got != ARCHIVE_OK && got != ARCHIVE_WARN) refuse();
      if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr)
        continue;
      const char* name = archive_entry_pathname_utf8(entry);
      if (name == nullptr) name = archive_entry_pathname(entry);
      if (name == nullptr) continue;
      name_ = name;
      return true;
    }
  }
  const std::string& name() const { return name_; }

  /// The bytes of the member; nothing if there are more than `most`.
  std::optional<std::string> read(std::size_t most) {
    constexpr std::size_t kRead = std::size_t{1} << 16;
    std::string bytes;
    for (;;) {
      const std::size_t before = bytes.size();
      bytes.resize(before + kRead);
      const la_ssize_t got = archive_read_data(handle_.get(), bytes.data() + before, kRead);
      if (got < 0) refuse();
      bytes.resize(before + static_cast<std::size_t>(got));
      if (got == 0) return bytes;
      if (bytes.size() > most) return std::nullopt;
    }
  }

 private:
  [[noreturn]] void refuse() const {
    const char* text = archive_error_string(handle_.get());
    throw DataError(
        fmt::format("'{}' is damaged{}: {}", path_,
                    name_.empty() ? "" : fmt::format(" at or after its member '{}'", name_),
                    text != nullptr ? text : "unknown error"),
        "copy or pack it again");
  }

  std::string path_, name_;
  std::unique_ptr<archive, TarCloser> handle_;
};

/// "a/b" of the member "a/b.c.txt".
std::string_view sample_of(std::string_view member) {
  const std::size_t slash = member.rfind('/');
  return member.substr(0, member.find('.', slash == std::string_view::npos ? 0 : slash + 1));
}

}  // namespace

void read_tar_texts(const std::string& path, const std::string& field, std::size_t most,
                    const UseMember& use) {
  struct Found {
    std::string member;  ///< empty: none
    RowText row;
  };
  TarMembers members(path);
  std::string sample;
  Found text, json;
  const auto finish = [&] {
    Found& found = text.member.empty() ? json : text;
    if (!found.member.empty()) use(found.member, std::move(found.row));
    text = json = {};
  };
  while (members.next()) {
    const std::string name = members.name();
    if (sample_of(name) != sample) finish(), sample = sample_of(name);
    const bool is_text = name.ends_with(".txt"), is_json = name.ends_with(".json");
    if (!is_text && !is_json) continue;
    std::optional<std::string> bytes = members.read(most);
    RowText row;
    if (!bytes)
      row.fault = fmt::format("longer than {} bytes", most);
    else if (is_json)
      row = text_of_row(*bytes, field);
    else if (valid_utf8(*bytes) != bytes->size())
      row.fault = "not UTF-8", row.detail = fmt::format("byte {}", valid_utf8(*bytes));
    else
      row.text = std::move(*bytes);
    (is_text ? text : json) = {name, std::move(row)};
  }
  finish();
}
#else
void read_tar_texts(const std::string& path, const std::string&, std::size_t, const UseMember&) {
  throw DeckError(
      fmt::format("'{}' cannot be read: this program was built without libarchive", path),
      "install libarchive-dev and build again, or unpack the archive");
}
#endif

}  // namespace choir
