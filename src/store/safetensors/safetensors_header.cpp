#include "src/store/safetensors/safetensors_header.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "choir/core/error.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr std::int64_t kLongestHeader = 100'000'000;  // as in the format's own library
constexpr std::size_t kDeepest = 8;

std::int64_t whole(const json& value, const std::string& what) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    throw StorageError(fmt::format("{} has {} where a size is expected", what,
                                   dumped_safely(value).substr(0, 40)));
  return value.get<std::int64_t>();
}

const json& member(const json& of, const char* key, const std::string& what) {
  const auto found = of.find(key);
  if (found == of.end()) throw StorageError(fmt::format("{} has no '{}'", what, key));
  return *found;
}

const json& list_of(const json& of, const char* key, const std::string& what) {
  const json& list = member(of, key, what);
  if (!list.is_array()) throw StorageError(fmt::format("{}: '{}' is not a list", what, key));
  return list;
}

SafetensorsRecord record_from(const std::string& name, const json& body, std::int64_t data_at,
                              const std::string& path) {
  const std::string what = fmt::format("tensor '{}' in '{}'", name, path);
  if (!body.is_object()) throw StorageError(what + " is not described by an object");
  const json& dtype = member(body, "dtype", what);
  const auto encoding = dtype.is_string() ? encoding_of(dtype.get<std::string>()) : std::nullopt;
  if (!encoding || *encoding >= Encoding::q8_0)
    throw StorageError(
        fmt::format("{} has the unknown dtype {}", what, dumped_safely(dtype).substr(0, 40)));
  SafetensorsRecord record;
  record.entry.name = name;
  record.entry.encoding = *encoding;
  std::vector<std::int64_t> extents;
  for (const json& extent : list_of(body, "shape", what)) extents.push_back(whole(extent, what));
  record.entry.shape = checked_shape(extents, *encoding, what);
  const json& offsets = list_of(body, "data_offsets", what);
  if (offsets.size() != 2) throw StorageError(what + " does not have two data_offsets");
  const std::int64_t begin = whole(offsets[0], what), end = whole(offsets[1], what);
  if (begin > end || end - begin != record.entry.bytes())
    throw StorageError(fmt::format("{} has the offsets [{}, {}), but {} {} needs {} bytes", what,
                                   begin, end, name_of(*encoding), to_string(record.entry.shape),
                                   record.entry.bytes()));
  record.offset = data_at + begin;
  return record;
}

// Every byte of the data belongs to exactly one tensor: there are no hidden bytes and no overlaps.
void require_tiling(std::vector<SafetensorsRecord>& records, std::int64_t data_at,
                    const FileWindow& file) {
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.entry.bytes()) < std::pair(b.offset, b.entry.bytes());
  });
  std::int64_t reached = data_at;
  for (const SafetensorsRecord& record : records) {
    if (record.offset != reached)
      throw StorageError(fmt::format(
          "tensor '{}' in '{}' begins at byte {} of the data, which {} {}", record.entry.name,
          file.name(), record.offset - data_at,
          record.offset < reached ? "overlaps the one before, up to" : "leaves a hole behind",
          reached - data_at));
    reached += record.entry.bytes();
  }
  if (reached != file.bytes())
    throw StorageError(fmt::format("the tensors of '{}' end at byte {}, but the file at {}",
                                   file.name(), reached, file.bytes()),
                       "the copy or download may be incomplete");
}

json parsed_header(const std::string& text, const std::string& path) {
  if (text.empty() || text.front() != '{')
    throw StorageError("the header of '" + path + "' is not a JSON object");
  try {
    return read_json(text, fmt::format("the header of '{}'", path),
                     {.depth = kDeepest, .keys = kAnyNumberOfKeys});
  } catch (const JsonError& error) {
    throw StorageError(error.what());
  }
}

}  // namespace

SafetensorsHeader read_safetensors_header(const FileWindow& file) {
  if (file.bytes() < 8)
    throw StorageError(fmt::format("'{}' has {} bytes, too few for a safetensors file", file.name(),
                                   file.bytes()));
  const auto length = file.number_at<std::uint64_t>(0);
  if (length > static_cast<std::uint64_t>(kLongestHeader))
    throw StorageError(
        fmt::format("'{}' has a header of {} bytes, more than {}: it is not a safetensors file",
                    file.name(), length, kLongestHeader));
  const auto bytes = static_cast<std::int64_t>(length);
  const json body = parsed_header(file.text_at(8, bytes), file.name());
  SafetensorsHeader header;
  for (const auto& [name, value] : body.items()) {
    if (name != "__metadata__") {
      header.records.push_back(record_from(name, value, 8 + bytes, file.name()));
      continue;
    }
    if (!value.is_object())
      throw StorageError("__metadata__ of '" + file.name() + "' is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        throw StorageError(
            fmt::format("__metadata__ of '{}': '{}' is not a text", file.name(), key));
      header.metadata[key] = text.get<std::string>();
    }
  }
  require_tiling(header.records, 8 + bytes, file);
  return header;
}

std::string lay_out_safetensors_header(std::vector<SafetensorsRecord>& records,
                                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json body = nlohmann::ordered_json::object();
  if (!metadata.empty()) body["__metadata__"] = metadata;
  std::int64_t reached = 0;
  for (SafetensorsRecord& record : records) {
    auto shape = nlohmann::ordered_json::array();
    for (int dim = 0; dim < record.entry.shape.rank(); ++dim)
      shape.push_back(record.entry.shape[dim]);
    record.offset = reached;
    reached += record.entry.bytes();
    // Append without a lookup, which would compare with every earlier key.
    body.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        record.entry.name,
        nlohmann::ordered_json{{"dtype", std::string(name_of(record.entry.encoding))},
                               {"shape", std::move(shape)},
                               {"data_offsets", {record.offset, reached}}});
  }
  std::string text = dumped(body);
  text.append((8 - text.size() % 8) % 8, ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string header(reinterpret_cast<const char*>(&length), sizeof length);
  header += text;
  for (SafetensorsRecord& record : records)
    record.offset += static_cast<std::int64_t>(header.size());
  return header;
}

}  // namespace choir
