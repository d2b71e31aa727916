// The archives of NeMo: gzip is unpacked into a temporary file without a name, the members of the
// tar archive are found by their headers, and they are read in place.

#include "src/store/torch/nemo_archive.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "choir_features.hpp"
#include "src/store/weight_file.hpp"

namespace choir {

/// The file itself if it is not compressed; else a temporary file without a name, which exists
/// until its last reader is destroyed. Throws StorageError if the file is damaged, unpacks to more
/// than a hundred times its size, or if the program was built without libarchive.
FileWindow unpacked(const std::string& path);

}  // namespace choir

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

struct TarMember {
  std::string name;  ///< without "./" in front
  std::int64_t data = 0, bytes = 0;
};

class TarDirectory {
 public:
  /// Reads ustar, GNU and pax. Throws a StorageError that names the archive for links, devices,
  /// paths that leave it, two members of one name, and inconsistent headers; skips folders.
  explicit TarDirectory(const FileWindow& archive);

  const std::vector<TarMember>& members() const { return members_; }
  /// nullptr if there is no such member.
  const TarMember* find(std::string_view name) const;

 private:
  std::vector<TarMember> members_;
};

namespace {

constexpr std::int64_t kBlock = 512;
constexpr std::int64_t kMostRecords = 1 << 20;  // bytes of the extended header in front of a member
constexpr std::size_t kMostMembers = 1 << 16;

[[noreturn]] void refuse(const FileWindow& archive, const std::string& why) {
  throw StorageError(fmt::format("the archive '{}' {}", archive.name(), why),
                     "the copy or download may be incomplete");
}

std::string text_field(const std::string& header, std::size_t at, std::size_t size) {
  const std::string field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

// Octal digits; if the highest bit is set, a big-endian binary number.
std::optional<std::int64_t> number_field(const std::string& header, std::size_t at,
                                         std::size_t size) {
  std::uint64_t value = 0;
  if ((static_cast<unsigned char>(header[at]) & 0x80u) != 0) {
    for (std::size_t i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(header[at + i]);
      if (value >> 54 != 0) return {};
      value = value << 8 | (i == 0 ? byte & 0x7fu : byte);
    }
    return static_cast<std::int64_t>(value);
  }
  std::string digits = text_field(header, at, size);
  digits.erase(0, std::min(digits.find_first_not_of(' '), digits.size()));
  digits.resize(std::min(digits.find(' '), digits.size()));
  const auto [stop, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (stop != digits.data() + digits.size() || (failed != std::errc() && !digits.empty()))
    return {};
  return static_cast<std::int64_t>(value & ~(std::uint64_t{1} << 63));
}

bool sum_agrees(const std::string& header) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < header.size(); ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
  return number_field(header, 148, 8) == sum;
}

/// Values from pax and GNU records that apply to the next member.
struct Overrides {
  std::optional<std::string> name;
  std::optional<std::int64_t> bytes;
};

// "27 path=./model_config.yaml\n": the length counts the whole record.
void read_pax(std::string_view records, Overrides& overrides, const FileWindow& archive) {
  while (!records.empty()) {
    std::size_t length = 0;
    const char* end = records.data() + records.size();
    const auto [stop, failed] = std::from_chars(records.data(), end, length);
    const auto digits = static_cast<std::size_t>(stop - records.data());
    if (failed != std::errc() || length <= digits + 1 || length > records.size() ||
        records[digits] != ' ' || records[length - 1] != '\n')
      refuse(archive, "has a damaged extended header");
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) refuse(archive, "has a damaged extended header");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") overrides.name = std::string(value);
    if (key == "linkpath") refuse(archive, "has a link, which is not followed");
    if (key == "size") {
      std::int64_t bytes = 0;
      const auto [last, wrong] = std::from_chars(value.data(), value.data() + value.size(), bytes);
      if (wrong != std::errc() || last != value.data() + value.size() || bytes < 0)
        refuse(archive, "has a damaged size");
      overrides.bytes = bytes;
    }
  }
}

std::string plain_name(std::string name, const FileWindow& archive) {
  std::size_t here = 0;
  while (name.compare(here, 2, "./") == 0) here += 2;
  name.erase(0, here);
  const bool climbs = name == ".." || name.starts_with("../") || name.ends_with("/..") ||
                      name.find("/../") != std::string::npos;
  if (name.starts_with('/') || climbs || name.find('\0') != std::string::npos)
    refuse(archive, fmt::format("has a member with the path '{}'", name));
  return name;
}

}  // namespace

TarDirectory::TarDirectory(const FileWindow& archive) {
  std::set<std::string> names;
  Overrides overrides;
  for (std::int64_t at = 0; at + kBlock <= archive.bytes();) {
    const std::string header = archive.text_at(at, kBlock);
    if (header.find_first_not_of('\0') == std::string::npos) break;  // the end
    if (!sum_agrees(header)) refuse(archive, fmt::format("has a damaged header at byte {}", at));
    const char type = header[156];
    std::optional<std::int64_t> bytes = number_field(header, 124, 12);
    const bool describes_next = type == 'x' || type == 'g' || type == 'L';
    if (!describes_next && overrides.bytes) bytes = overrides.bytes;
    const std::int64_t data = at + kBlock;
    if (!bytes || *bytes > archive.bytes() - data)
      refuse(archive, fmt::format("ends inside of the member at byte {}", at));
    at = data + (*bytes + kBlock - 1) / kBlock * kBlock;
    if (describes_next) {
      if (*bytes > kMostRecords) refuse(archive, "has an extended header of too many bytes");
      const std::string records = archive.text_at(data, *bytes);
      if (type == 'x') read_pax(records, overrides, archive);
      if (type == 'L') overrides.name = records.substr(0, records.find('\0'));
      continue;
    }
    const bool ustar = header.compare(257, 5, "ustar") == 0 && header[262] == '\0';
    const std::string prefix = ustar ? text_field(header, 345, 155) : std::string();
    std::string name = text_field(header, 0, 100);
    if (!prefix.empty()) name = prefix + "/" + name;
    name = plain_name(overrides.name.value_or(name), archive);
    overrides = {};
    if (type == '5') continue;  // a folder
    if (type != '0' && type != '\0')
      refuse(archive, fmt::format("has the member '{}' that is a link or a device", name));
    if (!names.insert(name).second) refuse(archive, fmt::format("has two members '{}'", name));
    if (members_.size() == kMostMembers) refuse(archive, "has too many members");
    members_.push_back({name, data, *bytes});
  }
  if (members_.empty()) refuse(archive, "contains no files");
}

const TarMember* TarDirectory::find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const TarMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

namespace {

constexpr const char* kWeights = "model_weights.ckpt";
constexpr std::int64_t kLargestConfig = std::int64_t{64} << 20;

FileWindow opened(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw StorageError(fmt::format("'{}' is a folder: the sharded format of NeMo 2", path),
                       "export it with NeMo as one .nemo file");
  return unpacked(path);
}

const TarMember& member_of(const TarDirectory& tar, const std::string& name,
                           const FileWindow& archive) {
  const TarMember* member = tar.find(name);
  if (member == nullptr)
    throw StorageError(fmt::format("the archive '{}' has no '{}'", archive.name(), name),
                       "a .nemo file has model_config.yaml and model_weights.ckpt: save it again "
                       "with NeMo's save_to(), or copy it again from its source");
  return *member;
}

}  // namespace

struct NemoArchive::State {
  FileWindow archive;
  TarDirectory tar;

  explicit State(const std::string& path) : archive(opened(path)), tar(archive) {}

  FileWindow part(const std::string& name) const {
    const TarMember& member = member_of(tar, name, archive);
    return archive.part(member.data, member.bytes, name);
  }
};

NemoArchive::NemoArchive(const std::string& path) : state_(std::make_unique<State>(path)) {}

NemoArchive::~NemoArchive() = default;

std::unique_ptr<TorchCheckpoint> NemoArchive::open_weights() const {
  return std::make_unique<TorchCheckpoint>(state_->part(kWeights));
}

std::vector<std::string> NemoArchive::members() const {
  std::vector<std::string> names;
  for (const TarMember& member : state_->tar.members()) names.push_back(member.name);
  return names;
}

std::string NemoArchive::read_member(const std::string& name) const {
  const FileWindow member = state_->part(name);
  if (member.bytes() > kLargestConfig)
    throw StorageError(fmt::format("'{}' has {} bytes, more than {}", member.name(), member.bytes(),
                                   kLargestConfig));
  return member.text_at(0, member.bytes());
}

}  // namespace choir
