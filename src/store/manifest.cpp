#include "choir/store/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include "choir/core/json_value.hpp"

#include "choir/core/crc32c.hpp"
#include "choir/core/json_extent.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr const char* kFormatName = "choir-checkpoint";

std::string hex(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::uint32_t from_hex(const std::string& text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 8 || failed != std::errc() || stop != end)
    throw StorageError("'" + text + "' is no checksum of 8 hexadecimal digits");
  return value;
}

/// The library would cut a fraction off, and make a number of one that is too large.
std::int64_t whole(const json& value) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits) throw StorageError(dumped(value).substr(0, 40) + " is no whole number");
  return value.get<std::int64_t>();
}

void append_extent(Shape& shape, std::int64_t extent) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  if (extent > 0 && shape.count() > kMostElements / extent)
    throw StorageError("a tensor has more elements than there are");
  shape.append(extent);
}

json to_json(const TensorRecord& record) {
  json shape = json::array();
  for (int dim = 0; dim < record.shape.rank(); ++dim) shape.push_back(record.shape[dim]);
  return {{"name", record.name},     {"dtype", std::string(name_of(record.dtype))},
          {"shape", shape},          {"offset", record.offset},
          {"bytes", record.bytes()}, {"crc32c", hex(record.crc32c)}};
}

TensorRecord record_from(const json& entry, std::int64_t file_bytes) {
  TensorRecord record;
  record.name = entry.at("name").get<std::string>();
  record.dtype = dtype_of(entry.at("dtype").get<std::string>());
  for (const json& extent : entry.at("shape")) append_extent(record.shape, whole(extent));
  record.offset = whole(entry.at("offset"));
  record.crc32c = from_hex(entry.at("crc32c").get<std::string>());
  const auto bytes = whole(entry.at("bytes"));
  if (bytes != record.bytes() || record.offset < 0 || record.offset > file_bytes - bytes)
    throw StorageError(fmt::format("tensor {} of {} bytes at {} does not fit its shape or the file",
                                   record.name, bytes, record.offset));
  return record;
}

/// What is printed as it stands: no line ends, and nothing that a terminal obeys.
std::string printable(const json& value) {
  constexpr std::size_t kLongest = 200;
  std::string text = value.get<std::string>();
  if (text.size() > kLongest ||
      std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 127; }))
    throw StorageError(dumped(value).substr(0, 40) + " is no text of one line");
  return text;
}

Manifest manifest_from(const json& body) {
  if (body.at("format").get<std::string>() != kFormatName)
    throw StorageError("it is of another program");
  const std::int64_t version = whole(body.at("format_version"));
  if (version != kCheckpointFormat)
    throw StorageError(
        fmt::format("it has format version {}, this program reads {}", version, kCheckpointFormat),
        "load it with the version of choir that wrote it");
  Manifest manifest;
  manifest.step = whole(body.at("step"));
  manifest.saved_at = printable(body.at("saved_at"));
  manifest.deck_hash = body.at("deck_hash").get<std::string>();
  manifest.layout = printable(body.at("layout"));
  if (!body.at("metric").is_null()) manifest.metric = body.at("metric").get<double>();
  const json& state = body.at("files").at(0);
  if (state.at("name").get<std::string>() != kStateName)
    throw StorageError("it does not list " + std::string(kStateName));
  manifest.state_bytes = whole(state.at("bytes"));
  if (manifest.state_bytes < 0) throw StorageError("it gives a file a negative size");
  manifest.state_crc32c = from_hex(state.at("crc32c").get<std::string>());
  manifest.structure_crc32c = from_hex(state.at("structure_crc32c").get<std::string>());
  for (const json& entry : body.at("tensors"))
    manifest.tensors.push_back(record_from(entry, manifest.state_bytes));
  return manifest;
}

}  // namespace

std::string Manifest::to_text() const {
  json body = {{"format", kFormatName},  {"format_version", kCheckpointFormat},
               {"step", step},           {"saved_at", saved_at},
               {"deck_hash", deck_hash}, {"layout", layout},
               {"metric", nullptr},      {"tensors", json::array()}};
  if (metric) body["metric"] = *metric;
  body["files"] = json::array({{{"name", kStateName},
                                {"bytes", state_bytes},
                                {"crc32c", hex(state_crc32c)},
                                {"structure_crc32c", hex(structure_crc32c)}}});
  for (const TensorRecord& record : tensors) body["tensors"].push_back(to_json(record));
  const std::string canonical = dumped(body);
  const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
  const json all = {{"crc32c", hex(own)}, {"manifest", std::move(body)}};
  return dumped(all, 1) + "\n";
}

Manifest Manifest::parse(std::string_view text) {
  try {
    if (const std::string excess = json_excess(text); !excess.empty()) throw StorageError(excess);
    const json all = parsed_json(text);
    const json& body = all.at("manifest");
    const std::string canonical = dumped(body);
    const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
    if (own != from_hex(all.at("crc32c").get<std::string>()))
      throw StorageError("it does not match its own checksum");
    return manifest_from(body);
  } catch (const json::parse_error& error) {
    throw StorageError(fmt::format("it is not JSON (byte {} of {})", error.byte, text.size()));
  } catch (const StorageError&) {
    throw;
  } catch (const std::exception& error) {
    throw StorageError(fmt::format("it is malformed ({})", error.what()));
  }
}

const TensorRecord* Manifest::find(std::string_view name) const {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorRecord& record) { return record.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

std::vector<FileRegion> regions_of(const std::vector<TensorRecord>& tensors,
                                   std::int64_t file_bytes) {
  std::vector<FileRegion> used;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].bytes() > 0)
      used.push_back({tensors[i].offset, tensors[i].bytes(), static_cast<int>(i)});
  std::sort(used.begin(), used.end(),
            [](const FileRegion& a, const FileRegion& b) { return a.offset < b.offset; });
  std::vector<FileRegion> regions;
  std::int64_t reached = 0;
  for (const FileRegion& region : used) {
    if (region.offset < reached)
      throw StorageError("tensor " + tensors[static_cast<std::size_t>(region.tensor)].name +
                         " overlaps the one before it");
    if (region.offset > reached) regions.push_back({reached, region.offset - reached, -1});
    regions.push_back(region);
    reached = region.offset + region.bytes;
  }
  if (reached < file_bytes) regions.push_back({reached, file_bytes - reached, -1});
  return regions;
}

std::uint32_t crc_of_file(const std::vector<FileRegion>& regions,
                          const std::vector<std::uint32_t>& crcs) {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < regions.size(); ++i)
    crc = crc32c_combine(crc, crcs[i], static_cast<std::uint64_t>(regions[i].bytes));
  return crc;
}

std::uint32_t crc_of_structure(const std::vector<FileRegion>& regions,
                               const std::vector<std::uint32_t>& crcs) {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < regions.size(); ++i)
    if (regions[i].tensor < 0)
      crc = crc32c_combine(crc, crcs[i], static_cast<std::uint64_t>(regions[i].bytes));
  return crc;
}

}  // namespace choir
