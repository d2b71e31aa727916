#include "src/store/state_meta.hpp"

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "choir/core/crc32c.hpp"

namespace choir {
namespace {

/// Calls `find(bytes)` for each of HDF5's own regions and returns the first extent that it finds,
/// relative to the beginning of the file.
template <class Find>
std::optional<TextRecord> search(const File& state, const std::vector<FileRegion>& regions,
                                 const Find& find) {
  std::string bytes;
  for (const FileRegion& region : regions) {
    if (region.tensor >= 0) continue;
    // choir never writes this much between two tensors.
    if (region.bytes > 2 * kMostTextBytes)
      throw StorageError(
          fmt::format("{} has {} bytes in a row that belong to no tensor, more than choir writes",
                      state.path(), region.bytes));
    bytes.resize(static_cast<std::size_t>(region.bytes));
    state.read_at(bytes.data(), region.bytes, region.offset);
    if (std::optional<TextRecord> found = find(std::string_view(bytes))) {
      found->offset += region.offset;
      return found;
    }
  }
  return std::nullopt;
}

template <class Number>
Number little_endian(std::string_view bytes, std::size_t at) {
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Finds the attribute "meta" in the form that HDF5 writes since version 1.8 (message 0x000C,
/// version 3): version, flags, sizes of the name, the type and the space, the character set, then
/// these three, then the text. The type is a text of fixed length; its class and its length are
/// checked.
std::optional<TextRecord> find_attribute(std::string_view bytes) {
  using std::string_view_literals::operator""sv;
  constexpr std::string_view kName = "meta\0"sv;
  constexpr std::size_t kBefore = 9, kTypeBytes = 8, kMostSpaceBytes = 64;
  constexpr unsigned char kVersion = 3, kTextClass = 3;
  for (std::size_t at = bytes.find(kName); at != std::string_view::npos;
       at = bytes.find(kName, at + 1)) {
    if (at < kBefore) continue;
    const std::size_t head = at - kBefore, type = at + kName.size();
    const auto type_bytes = little_endian<std::uint16_t>(bytes, head + 4);
    const auto space_bytes = little_endian<std::uint16_t>(bytes, head + 6);
    if (bytes[head] != kVersion || bytes[head + 1] != 0 ||
        little_endian<std::uint16_t>(bytes, head + 2) != kName.size() || type_bytes != kTypeBytes ||
        space_bytes > kMostSpaceBytes)
      continue;
    const std::size_t text = type + type_bytes + space_bytes;
    if (text > bytes.size() || (static_cast<unsigned char>(bytes[type]) & 0x0f) != kTextClass)
      continue;
    const auto length = little_endian<std::uint32_t>(bytes, type + 4);
    if (length > bytes.size() - text || length > kMostTextBytes) continue;
    const std::string_view all = bytes.substr(text, length);
    return TextRecord{static_cast<std::int64_t>(text),
                      static_cast<std::int64_t>(all.substr(0, all.find('\0')).size()), 0};
  }
  return std::nullopt;
}

}  // namespace

TextRecord locate_meta(const File& state, const std::vector<FileRegion>& regions,
                       const std::string& text) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  const auto crc = crc32c(text.data(), text.size());
  if (bytes > kMostTextBytes)
    throw StorageError(
        fmt::format("the deck, the vocabulary and what else describes the run are "
                    "{} bytes, more than the {} of a checkpoint",
                    bytes, kMostTextBytes));
  const auto found = search(state, regions, [&](std::string_view own) {
    const std::size_t at = own.find(text);
    return at == std::string_view::npos
               ? std::nullopt
               : std::optional(TextRecord{static_cast<std::int64_t>(at), bytes, crc});
  });
  if (!found)
    throw StorageError("HDF5 has not written the description of the run to " + state.path() +
                       " in one piece");
  return *found;
}

std::string read_meta(const File& state, const std::vector<FileRegion>& regions,
                      const Manifest& manifest) {
  const auto record = manifest.meta ? manifest.meta : search(state, regions, find_attribute);
  if (!record)
    throw StorageError("the attribute meta of " + state.path() + " is not where choir writes it");
  std::string text(static_cast<std::size_t>(record->bytes), '\0');
  state.read_at(text.data(), record->bytes, record->offset);
  if (manifest.meta && crc32c(text.data(), text.size()) != record->crc32c)
    throw StorageError("the description of the run in " + state.path() + " is damaged");
  return text;
}

}  // namespace choir
