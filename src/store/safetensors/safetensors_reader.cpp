#include <fmt/core.h>

#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
#include "choir/store/safetensors/safetensors.hpp"
#include "src/store/safetensors/safetensors_header.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr std::int64_t kLongestIndex = 100'000'000;

/// The tensors of each shard, by file name.
using Shards = std::map<std::string, std::vector<std::string>>;

// Otherwise an index could have any file of the machine read and copied.
void require_plain_name(const std::string& shard, const std::string& index_path) {
  if (shard.empty() || shard.find_first_of("/\\") != std::string::npos || shard == "." ||
      shard == ".." || shard.find('\0') != std::string::npos)
    throw StorageError(
        fmt::format("'{}' names the shard '{}', which is not a file beside it", index_path, shard));
}

Shards read_index(const std::string& path) {
  const FileWindow file(path);
  if (file.bytes() > kLongestIndex)
    throw StorageError(
        fmt::format("'{}' has {} bytes, more than {}", path, file.bytes(), kLongestIndex));
  const std::string text = file.text_at(0, file.bytes());
  const auto refuse = [&](const std::string& what) {
    throw StorageError(fmt::format("'{}' is not an index of safetensors shards: {}", path, what),
                       "download it again");
  };
  json index;
  try {
    index = read_json(text, path, {.depth = 8, .keys = kAnyNumberOfKeys});
  } catch (const JsonError& error) {
    throw StorageError(error.what(), "download it again");
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse("it has no object 'weight_map'");
  Shards shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      refuse(fmt::format("the file of tensor '{}' is not a text", name.substr(0, 200)));
    const auto& file_name = shard.get_ref<const std::string&>();
    require_plain_name(file_name, path);
    shards[file_name].push_back(name);
  }
  if (shards.empty()) throw StorageError("'" + path + "' lists no tensors");
  return shards;
}

void require_listed(const SafetensorsHeader& header, const std::vector<std::string>& listed,
                    const std::string& shard, const std::string& index_path) {
  std::map<std::string, bool> seen;
  for (const std::string& name : listed) seen[name] = false;
  for (const SafetensorsRecord& record : header.records) {
    const auto found = seen.find(record.entry.name);
    if (found == seen.end())
      throw StorageError(
          fmt::format("shard '{}' contains tensor '{}', which '{}' does not list there", shard,
                      record.entry.name, index_path));
    found->second = true;
  }
  for (const auto& [name, there] : seen)
    if (!there)
      throw StorageError(
          fmt::format("tensor '{}' is not in shard '{}', although '{}' lists it there", name, shard,
                      index_path));
}

std::string file_in(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (const fs::path file = fs::path(path) / name; fs::exists(file, ignored))
      return file.string();
  throw StorageError(
      fmt::format("'{}' has neither model.safetensors nor model.safetensors.index.json", path),
      "give the file itself");
}

}  // namespace

struct SafetensorsReader::State {
  struct Place {
    std::size_t file;
    std::int64_t offset;
  };
  std::vector<FileWindow> files;
  std::vector<Place> places;  // positions of the tensors
  std::map<std::string, std::string> metadata;

  void add(SafetensorsHeader header, FileWindow file, std::vector<TensorEntry>& entries) {
    if (files.empty()) metadata = std::move(header.metadata);
    for (SafetensorsRecord& record : header.records) {
      places.push_back({files.size(), record.offset});
      entries.push_back(std::move(record.entry));
    }
    files.push_back(std::move(file));
  }
};

SafetensorsReader::SafetensorsReader(const std::string& path)
    : TensorReader(path), state_(std::make_unique<State>()) {
  std::vector<TensorEntry> entries;
  const std::string start = file_in(path);
  if (!start.ends_with(".json")) {
    FileWindow file(start);
    SafetensorsHeader header = read_safetensors_header(file);
    state_->add(std::move(header), std::move(file), entries);
  } else {
    const std::filesystem::path folder = std::filesystem::path(start).parent_path();
    for (const auto& [shard, names] : read_index(start)) {
      const std::string shard_path = (folder / shard).string();
      std::error_code ignored;
      if (!std::filesystem::exists(shard_path, ignored))
        throw StorageError(
            fmt::format("shard '{}' is missing, which '{}' lists", shard_path, start),
            "download all files of the model");
      FileWindow file(shard_path);
      SafetensorsHeader header = read_safetensors_header(file);
      require_listed(header, names, shard_path, start);
      state_->add(std::move(header), std::move(file), entries);
    }
  }
  set_tensors(std::move(entries));
}

SafetensorsReader::~SafetensorsReader() = default;

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return state_->metadata;
}

void SafetensorsReader::read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                                     std::byte* to) const {
  const State::Place& place = state_->places[index];
  const Encoding encoding = tensors()[index].encoding;
  state_->files[place.file].read_at(to, encoded_bytes(encoding, count),
                                    place.offset + encoded_bytes(encoding, first));
}

}  // namespace choir
