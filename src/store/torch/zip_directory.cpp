#include "src/store/torch/zip_directory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr std::uint32_t kLocalMark = 0x04034b50, kCentralMark = 0x02014b50, kEndMark = 0x06054b50,
                        kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50;
constexpr std::int64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                       kLocator64Bytes = 20, kLongestComment = 65535;
constexpr std::int64_t kMostDirectoryBytes = std::int64_t{256} << 20;
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint32_t kIn64 = 0xffffffff;

[[noreturn]] void refuse_zip(const FileWindow& archive, const std::string& why) {
  throw StorageError(fmt::format("the zip archive '{}' {}", archive.name(), why),
                     "the copy or download may be incomplete");
}

template <class T>
T number_in(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Directory {
  std::int64_t entries = 0, at = 0, bytes = 0;
};

std::int64_t checked(std::uint64_t value, const FileWindow& archive) {
  if (value > static_cast<std::uint64_t>(archive.bytes()))
    refuse_zip(archive, fmt::format("points to byte {} of {}", value, archive.bytes()));
  return static_cast<std::int64_t>(value);
}

Directory find_directory64(const FileWindow& archive, std::int64_t end_at) {
  const std::int64_t locator = end_at - kLocator64Bytes;
  if (locator < 0 || archive.number_at<std::uint32_t>(locator) != kLocator64Mark)
    refuse_zip(archive, "lacks the locator of its 64-bit directory");
  const std::int64_t at = checked(archive.number_at<std::uint64_t>(locator + 8), archive);
  const std::string record = archive.text_at(at, kEnd64Bytes);
  if (number_in<std::uint32_t>(record, 0) != kEnd64Mark)
    refuse_zip(archive, "lacks its 64-bit directory");
  return {checked(number_in<std::uint64_t>(record, 32), archive),
          checked(number_in<std::uint64_t>(record, 48), archive),
          checked(number_in<std::uint64_t>(record, 40), archive)};
}

Directory find_directory(const FileWindow& archive) {
  const std::int64_t tail = std::min(archive.bytes(), kEndBytes + kLongestComment);
  if (tail < kEndBytes) refuse_zip(archive, "is too short");
  const std::string bytes = archive.text_at(archive.bytes() - tail, tail);
  for (std::int64_t at = tail - kEndBytes; at >= 0; --at) {
    const auto here = static_cast<std::size_t>(at);
    if (number_in<std::uint32_t>(bytes, here) != kEndMark ||
        number_in<std::uint16_t>(bytes, here + 20) != tail - kEndBytes - at)
      continue;
    const std::int64_t end_at = archive.bytes() - tail + at;
    const Directory found{number_in<std::uint16_t>(bytes, here + 10),
                          number_in<std::uint32_t>(bytes, here + 16),
                          number_in<std::uint32_t>(bytes, here + 12)};
    if (number_in<std::uint16_t>(bytes, here + 4) != 0 && found.entries != 0xffff)
      refuse_zip(archive, "is one of several parts");
    if (found.entries == 0xffff || found.at == kIn64 || found.bytes == kIn64)
      return find_directory64(archive, end_at);
    return found;
  }
  refuse_zip(archive, "has no directory at its end");
}

// Sizes and positions beyond 4 GiB are in an extra field, in this order; it contains only values
// that do not fit into 32 bits.
void read_extra64(std::string_view extra, std::uint64_t& whole, std::uint64_t& stored,
                  std::uint64_t& header, const FileWindow& archive) {
  while (extra.size() >= 4) {
    const auto kind = number_in<std::uint16_t>(extra, 0);
    const std::size_t size = number_in<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) refuse_zip(archive, "has a damaged extra field");
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (kind != kExtra64) continue;
    for (std::uint64_t* value : {&whole, &stored, &header}) {
      if (*value != kIn64) continue;
      if (field.size() < 8) refuse_zip(archive, "has a damaged 64-bit extra field");
      *value = number_in<std::uint64_t>(field, 0);
      field.remove_prefix(8);
    }
  }
}

void require_plain_path(const std::string& name, const FileWindow& archive) {
  const bool climbs = name == ".." || name.starts_with("../") || name.ends_with("/..") ||
                      name.find("/../") != std::string::npos;
  if (name.empty() || name.front() == '/' || climbs ||
      name.find_first_of(std::string_view("\\\0", 2)) != std::string::npos)
    refuse_zip(archive, fmt::format("has a member with the path '{}'", name));
}

// Takes one entry from the front of the directory.
ZipMember take_member(std::string_view& directory, const FileWindow& archive) {
  if (std::ssize(directory) < kCentralBytes ||
      number_in<std::uint32_t>(directory, 0) != kCentralMark)
    refuse_zip(archive, "has a damaged directory");
  const std::size_t name_bytes = number_in<std::uint16_t>(directory, 28),
                    extra_bytes = number_in<std::uint16_t>(directory, 30),
                    comment_bytes = number_in<std::uint16_t>(directory, 32);
  const std::size_t all = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  if (directory.size() < all) refuse_zip(archive, "has a damaged directory");
  ZipMember member;
  member.name = directory.substr(kCentralBytes, name_bytes);
  require_plain_path(member.name, archive);
  if ((number_in<std::uint16_t>(directory, 8) & 1u) != 0)
    refuse_zip(archive, fmt::format("has the encrypted member '{}'", member.name));
  if (number_in<std::uint16_t>(directory, 10) != 0)
    refuse_zip(archive, fmt::format("has the compressed member '{}'; torch stores them plainly",
                                    member.name));
  std::uint64_t stored = number_in<std::uint32_t>(directory, 20),
                whole = number_in<std::uint32_t>(directory, 24),
                header = number_in<std::uint32_t>(directory, 42);
  read_extra64(directory.substr(kCentralBytes + name_bytes, extra_bytes), whole, stored, header,
               archive);
  if (stored != whole)
    refuse_zip(archive, fmt::format("gives two sizes of the member '{}'", member.name));
  member.bytes = checked(whole, archive);
  member.header = checked(header, archive);
  directory.remove_prefix(all);
  return member;
}

// A member's bytes begin after its local header, whose sizes may be zero but whose name must agree.
void locate(ZipMember& member, const FileWindow& archive, std::int64_t directory_at) {
  const std::string head = archive.text_at(member.header, kLocalBytes);
  const auto name_bytes = std::int64_t{number_in<std::uint16_t>(head, 26)};
  const auto extra_bytes = std::int64_t{number_in<std::uint16_t>(head, 28)};
  if (number_in<std::uint32_t>(head, 0) != kLocalMark ||
      archive.text_at(member.header + kLocalBytes, name_bytes) != member.name)
    refuse_zip(archive,
               fmt::format("does not have the member '{}' at its listed position", member.name));
  member.data = member.header + kLocalBytes + name_bytes + extra_bytes;
  if (member.data > directory_at || member.bytes > directory_at - member.data)
    refuse_zip(archive, fmt::format("has the member '{}' reach into its directory", member.name));
}

void require_apart(const std::vector<ZipMember>& members, const FileWindow& archive) {
  std::vector<const ZipMember*> sorted;
  for (const ZipMember& member : members) sorted.push_back(&member);
  std::sort(sorted.begin(), sorted.end(),
            [](const ZipMember* a, const ZipMember* b) { return a->header < b->header; });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i]->header < sorted[i - 1]->data + sorted[i - 1]->bytes)
      refuse_zip(archive, fmt::format("has the members '{}' and '{}' overlap", sorted[i - 1]->name,
                                      sorted[i]->name));
}

}  // namespace

ZipDirectory::ZipDirectory(const FileWindow& archive) {
  const Directory directory = find_directory(archive);
  if (directory.bytes > archive.bytes() - directory.at || directory.bytes > kMostDirectoryBytes)
    refuse_zip(archive, "has a directory that does not fit into the file");
  const std::string bytes = archive.text_at(directory.at, directory.bytes);
  std::string_view left = bytes;
  std::set<std::string_view> names;
  for (std::int64_t i = 0; i < directory.entries; ++i) {
    members_.push_back(take_member(left, archive));
    locate(members_.back(), archive, directory.at);
  }
  for (const ZipMember& member : members_)
    if (!names.insert(member.name).second)
      refuse_zip(archive, fmt::format("has two members '{}'", member.name));
  if (!left.empty()) refuse_zip(archive, "has more members than it counts");
  require_apart(members_, archive);
}

const ZipMember* ZipDirectory::find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const ZipMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

}  // namespace choir
