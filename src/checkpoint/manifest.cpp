#include "choir/checkpoint/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "choir/core/crc32c.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr const char* kFormatName = "choir-checkpoint";

std::string hex(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::uint32_t from_hex(const std::string& text) {
  std::size_t used = 0;
  const unsigned long value = text.size() == 8 ? std::stoul(text, &used, 16) : 0;
  if (used != 8) throw StorageError("'" + text + "' is no checksum of 8 hexadecimal digits");
  return static_cast<std::uint32_t>(value);
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
  for (const json& extent : entry.at("shape")) record.shape.append(extent.get<std::int64_t>());
  record.offset = entry.at("offset").get<std::int64_t>();
  record.crc32c = from_hex(entry.at("crc32c").get<std::string>());
  const auto bytes = entry.at("bytes").get<std::int64_t>();
  if (bytes != record.bytes() || record.offset < 0 || record.offset > file_bytes - bytes)
    throw StorageError(fmt::format("tensor {} of {} bytes at {} does not fit its shape or the file",
                                   record.name, bytes, record.offset));
  return record;
}

Manifest manifest_from(const json& body) {
  if (body.at("format").get<std::string>() != kFormatName)
    throw StorageError("it is of another program");
  const int version = body.at("format_version").get<int>();
  if (version != kCheckpointFormat)
    throw StorageError(
        fmt::format("it has format version {}, this program reads {}", version, kCheckpointFormat),
        "load it with the version of choir that wrote it");
  Manifest manifest;
  manifest.step = body.at("step").get<std::int64_t>();
  manifest.saved_at = body.at("saved_at").get<std::string>();
  manifest.deck_hash = body.at("deck_hash").get<std::string>();
  manifest.layout = body.at("layout").get<std::string>();
  if (!body.at("metric").is_null()) manifest.metric = body.at("metric").get<double>();
  const json& state = body.at("files").at(0);
  if (state.at("name").get<std::string>() != kStateName)
    throw StorageError("it does not list " + std::string(kStateName));
  manifest.state_bytes = state.at("bytes").get<std::int64_t>();
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
  const std::string canonical = body.dump();
  const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
  const json whole = {{"crc32c", hex(own)}, {"manifest", std::move(body)}};
  return whole.dump(1) + "\n";
}

Manifest Manifest::parse(std::string_view text) {
  try {
    const json whole = json::parse(text);
    const json& body = whole.at("manifest");
    const std::string canonical = body.dump();
    const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
    if (own != from_hex(whole.at("crc32c").get<std::string>()))
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
