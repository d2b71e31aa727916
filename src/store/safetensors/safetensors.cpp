// The JSON header in front of a safetensors file, with checks that the tensors tile the data
// exactly, the reader of one file, and the writer of one file or of several shards.

#include "src/store/safetensors/safetensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/store/quantised_blocks.hpp"
#include "src/store/tensor_file.hpp"
#include "src/store/weight_file.hpp"

namespace choir {

struct SafetensorsRecord {
  TensorEntry entry;
  std::int64_t offset = 0;  ///< from the start of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsRecord> records;  ///< ordered by offset
  std::map<std::string, std::string> metadata;
};

/// Throws a StorageError that names the file and the fault.
SafetensorsHeader read_safetensors_header(const FileWindow& file);

/// The length, the JSON and its padding. Sets the offsets of the records, which must be in the
/// order of their bytes.
std::string lay_out_safetensors_header(std::vector<SafetensorsRecord>& records,
                                       const std::map<std::string, std::string>& metadata);

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
  if (!encoding || is_quantised(*encoding))
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
    if (value.is_null()) continue;
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

struct SafetensorsReader::State {
  FileWindow file;
  std::vector<std::int64_t> offsets;  // of the tensors
  std::map<std::string, std::string> metadata;
};

SafetensorsReader::SafetensorsReader(const std::string& path)
    : TensorReader(path), state_(new State{FileWindow(path), {}, {}}) {
  SafetensorsHeader header = read_safetensors_header(state_->file);
  std::vector<TensorEntry> entries;
  for (SafetensorsRecord& record : header.records) {
    state_->offsets.push_back(record.offset);
    entries.push_back(std::move(record.entry));
  }
  state_->metadata = std::move(header.metadata);
  set_tensors(std::move(entries));
}

SafetensorsReader::~SafetensorsReader() = default;

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return state_->metadata;
}

void SafetensorsReader::read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                                     std::byte* to) const {
  const Encoding encoding = tensors()[index].encoding;
  state_->file.read_at(to, encoded_bytes(encoding, count),
                       state_->offsets[index] + encoded_bytes(encoding, first));
}

namespace {

// The shard of each tensor: the next one if the current one would become too large.
std::vector<std::size_t> shards_of(const std::vector<TensorEntry>& tensors, std::int64_t most) {
  std::vector<std::size_t> shards;
  std::size_t shard = 0;
  std::int64_t filled = 0;
  for (const TensorEntry& entry : tensors) {
    if (filled > 0 && entry.bytes() > most - filled) ++shard, filled = 0;
    filled += entry.bytes();
    shards.push_back(shard);
  }
  return shards;
}

}  // namespace

struct SafetensorsWriter::State {
  struct Shard {
    std::string name, header;
    std::int64_t bytes = 0;
    PendingFile file;
  };
  struct Place {
    std::size_t shard = 0;
    std::int64_t offset = 0;
  };
  std::vector<Shard> shards;
  std::vector<Place> places;  // positions of the tensors
  std::string index_path, index;
};

SafetensorsWriter::SafetensorsWriter(const std::string& folder, std::vector<TensorEntry> tensors,
                                     SafetensorsOptions options)
    : TensorWriter(folder, std::move(tensors)), state_(std::make_unique<State>()) {
  namespace fs = std::filesystem;
  const std::vector<TensorEntry>& all = this->tensors();
  for (const TensorEntry& entry : all) {
    CHOIR_CHECK(!is_quantised(entry.encoding), "{} in safetensors", name_of(entry.encoding));
    CHOIR_CHECK(entry.name != "__metadata__", "that is no name of a tensor");
  }
  const std::vector<std::size_t> shards = shards_of(all, options.shard_bytes);
  const std::size_t number = shards.empty() ? 1 : shards.back() + 1;
  state_->places.resize(all.size());
  nlohmann::json weight_map = nlohmann::json::object();
  std::int64_t elements = 0;
  for (std::size_t shard = 0; shard < number; ++shard) {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (shards[i] == shard) members.push_back(i);
    std::sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      if (all[a].encoding != all[b].encoding) return all[a].encoding > all[b].encoding;
      return all[a].name < all[b].name;
    });
    std::vector<SafetensorsRecord> records;
    for (const std::size_t i : members) records.push_back({all[i]});
    const std::string name =
        number == 1 ? options.stem + ".safetensors"
                    : fmt::format("{}-{:05}-of-{:05}.safetensors", options.stem, shard + 1, number);
    std::string header = lay_out_safetensors_header(records, options.metadata);
    auto bytes = static_cast<std::int64_t>(header.size());
    for (std::size_t r = 0; r < records.size(); ++r) {
      state_->places[members[r]] = {shard, records[r].offset};
      bytes += records[r].entry.bytes();
      elements += records[r].entry.shape.count();
      weight_map[records[r].entry.name] = name;
    }
    state_->shards.push_back(
        {name, std::move(header), bytes, PendingFile((fs::path(folder) / name).string())});
  }
  if (number == 1) return;
  state_->index_path = (fs::path(folder) / (options.stem + ".safetensors.index.json")).string();
  state_->index =
      dumped(nlohmann::json{{"metadata",
                             {{"total_parameters", elements}, {"total_size", this->bytes()}}},
                            {"weight_map", std::move(weight_map)}},
             2) +
      "\n";
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::lay_out() {
  for (State::Shard& shard : state_->shards) shard.file.create(shard.header, shard.bytes);
}

void SafetensorsWriter::write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                                      const std::byte* from) {
  const State::Place& place = state_->places[index];
  const Encoding encoding = tensors()[index].encoding;
  state_->shards[place.shard].file.write_at(from, encoded_bytes(encoding, count),
                                            place.offset + encoded_bytes(encoding, first));
}

void SafetensorsWriter::sync() {
  for (State::Shard& shard : state_->shards) shard.file.sync();
}

void SafetensorsWriter::rename_files() {
  for (State::Shard& shard : state_->shards) shard.file.rename();
  if (state_->index.empty()) return;
  PendingFile index(state_->index_path);
  index.create(state_->index, static_cast<std::int64_t>(state_->index.size()));
  index.sync();
  index.rename();
}

}  // namespace choir
