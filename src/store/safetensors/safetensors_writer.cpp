#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_value.hpp"
#include "choir/store/safetensors/safetensors.hpp"
#include "src/store/pending_file.hpp"
#include "src/store/safetensors/safetensors_header.hpp"

namespace choir {
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
    CHOIR_CHECK(entry.encoding < Encoding::q8_0, "{} in safetensors", name_of(entry.encoding));
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
