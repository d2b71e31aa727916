#include "src/store/tensor_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file_kind.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/store/gguf/gguf.hpp"
#include "src/store/llmc/llmc_model.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "src/store/torch/nemo_archive.hpp"
#include "src/store/torch/torch_checkpoint.hpp"
#include "src/store/weight_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::unique_ptr<TensorReader> open_file(const std::string& name);

struct Shard {
  std::string path;
  std::unique_ptr<TensorReader> file;
};

/// The tensors of several files as those of one.
class ShardedReader final : public TensorReader {
 public:
  /// `path` is the index or one of the shards. Throws StorageError for a tensor of two shards.
  ShardedReader(const std::string& path, std::vector<Shard> shards)
      : TensorReader(path), shards_(std::move(shards)) {
    std::vector<TensorEntry> entries;
    std::map<std::string_view, std::size_t> shard_of;
    for (std::size_t shard = 0; shard < shards_.size(); ++shard)
      for (const TensorEntry& entry : shards_[shard].file->tensors()) {
        const auto [first, fresh] = shard_of.emplace(entry.name, shard);
        if (!fresh)
          throw StorageError(fmt::format("tensor '{}' is in '{}' and in '{}'", entry.name,
                                         shards_[first->second].path, shards_[shard].path),
                             kMixed);
        entries.push_back(entry);
        holders_.push_back(shards_[shard].file.get());
      }
    set_tensors(std::move(entries));
  }

  static constexpr const char* kMixed =
      "the files are of different models or versions: download all files of one model again";

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override {
    holders_[index]->read_stored(tensors()[index].name, first, count, to);
  }

  std::vector<Shard> shards_;
  std::vector<const TensorReader*> holders_;  // of the tensors
};

constexpr std::int64_t kLongestIndex = 100'000'000;

/// The tensors of each shard, by file name.
using ListedShards = std::map<std::string, std::vector<std::string>>;

// Otherwise an index could have any file of the machine read and copied.
void require_plain_name(const std::string& shard, const std::string& index_path) {
  if (shard.empty() || shard.find_first_of("/\\") != std::string::npos || shard == "." ||
      shard == ".." || shard.find('\0') != std::string::npos)
    throw StorageError(
        fmt::format("'{}' names the shard '{}', which is not a file beside it", index_path, shard),
        "download the index again");
}

ListedShards read_index(const std::string& path) {
  const FileWindow file(path);
  if (file.bytes() > kLongestIndex)
    throw StorageError(
        fmt::format("'{}' has {} bytes, more than {}", path, file.bytes(), kLongestIndex),
        "is it the file that its name says?");
  const std::string text = file.text_at(0, file.bytes());
  const auto refuse = [&](const std::string& what) {
    throw StorageError(fmt::format("'{}' is not an index of shards: {}", path, what),
                       "download it again");
  };
  nlohmann::json index;
  try {
    index = read_json(text, path, {.depth = 8, .keys = kAnyNumberOfKeys});
  } catch (const JsonError& error) {
    throw StorageError(error.what(), "download it again");
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse("it has no object 'weight_map'");
  ListedShards shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      refuse(fmt::format("the file of tensor '{}' is not a text", name.substr(0, 200)));
    const auto& file_name = shard.get_ref<const std::string&>();
    require_plain_name(file_name, path);
    shards[file_name].push_back(name);
  }
  if (shards.empty()) refuse("it lists no tensors");
  return shards;
}

/// The shard must hold exactly the tensors that the index lists for it.
void require_listed(const Shard& shard, const std::vector<std::string>& listed,
                    const std::string& index_path) {
  for (const std::string& name : listed)
    if (shard.file->find(name) == nullptr)
      throw StorageError(
          fmt::format("tensor '{}' is not in shard '{}', although '{}' lists it there", name,
                      shard.path, index_path),
          ShardedReader::kMixed);
  const std::set<std::string_view> names(listed.begin(), listed.end());
  for (const TensorEntry& entry : shard.file->tensors())
    if (!names.contains(entry.name))
      throw StorageError(
          fmt::format("shard '{}' contains tensor '{}', which '{}' does not list there", shard.path,
                      entry.name, index_path),
          ShardedReader::kMixed);
}

std::unique_ptr<TensorReader> open_index(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::vector<Shard> shards;
  for (const auto& [name, listed] : read_index(path)) {
    const std::string file = (folder / name).string();
    if (!is_there(file))
      throw StorageError(fmt::format("shard '{}' is missing, which '{}' lists", file, path),
                         "download all files of the model");
    shards.push_back({file, open_file(file)});
    require_listed(shards.back(), listed, path);
  }
  return std::make_unique<ShardedReader>(path, std::move(shards));
}

/// A name of the form STEM-00001-of-00003.safetensors or .bin.
struct ShardName {
  std::string stem, ending;
  int shards = 0, digits = 0;

  std::string of(int number) const {
    return fmt::format("{}-{:0{}}-of-{:0{}}{}", stem, number, digits, shards, digits, ending);
  }
  std::string index() const { return stem + ending + ".index.json"; }
};

/// std::nullopt for names of another form, and for those with one shard.
std::optional<ShardName> shard_name_of(const std::string& name) {
  static const std::regex kForm(R"((.+)-(\d{5,6})-of-(\d{5,6})(\.safetensors|\.bin))");
  std::smatch parts;
  if (!std::regex_match(name, parts, kForm)) return std::nullopt;
  const ShardName shard{parts[1], parts[4], std::stoi(parts[3]),
                        static_cast<int>(parts[3].length())};
  const int number = std::stoi(parts[2]);
  if (parts[2].length() != parts[3].length() || number < 1 || number > shard.shards ||
      shard.shards < 2)
    return std::nullopt;
  return shard;
}

/// A shard of the model in the folder; "" if there is none. The safe format comes first.
std::string shard_in(const fs::path& folder, std::string_view ending = "") {
  std::string found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto shard = shard_name_of(name);
    if (!shard || (shard->stem != "model" && shard->stem != "pytorch_model")) continue;
    if (!ending.empty() && shard->ending != ending) continue;
    if (found.empty() || name < found) found = name;
  }
  return found.empty() ? "" : (folder / found).string();
}

/// The shards that belong to `path` by their names, without an index.
std::unique_ptr<TensorReader> open_numbered(const std::string& path, const ShardName& name) {
  const fs::path folder = fs::path(path).parent_path();
  std::vector<std::string> files, missing;
  for (int number = 1; number <= name.shards; ++number) {
    files.push_back((folder / name.of(number)).string());
    if (!is_there(files.back())) missing.push_back(name.of(number));
  }
  if (!missing.empty())
    throw StorageError(
        fmt::format("'{}' is one of {} shards of a model, and {} not beside it: {}", path,
                    name.shards, missing.size() == 1 ? "one is" : "some are", join(missing, ", ")),
        "download all files of the model");
  std::vector<Shard> shards;
  for (const std::string& file : files) shards.push_back({file, open_file(file)});
  return std::make_unique<ShardedReader>(path, std::move(shards));
}

// In order of preference: the safe format first if a folder has both.
constexpr std::array<const char*, 7> kNames{"model.safetensors",
                                            "model.safetensors.index.json",
                                            "adapter_model.safetensors",
                                            "pytorch_model.bin",
                                            "pytorch_model.bin.index.json",
                                            "adapter_model.bin",
                                            "ckpt.pt"};

/// False for the index of shards of which the folder has none: a download of one of two formats
/// often has the indices of both.
bool has_weights_of(const fs::path& folder, const std::string& name) {
  constexpr std::string_view kIndex = ".index.json";
  if (!name.ends_with(kIndex)) return true;
  const fs::path weights = name.substr(0, name.size() - kIndex.size());
  return !shard_in(folder, weights.extension().string()).empty();
}

std::string file_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::vector<std::string> names;
  for (const char* name : kNames)
    if (is_there(fs::path(path) / name)) names.emplace_back(name);
  for (const std::string& name : names)
    if (has_weights_of(path, name)) return (fs::path(path) / name).string();
  if (const std::string shard = shard_in(path); !shard.empty()) return shard;
  if (!names.empty()) return (fs::path(path) / names.front()).string();
  std::string hint = "give the file itself";
  if (fs::is_directory(fs::path(path) / "weights", ignored))
    hint = "it looks like the sharded format of NeMo 2: export it as one .nemo file";
  throw StorageError(fmt::format("the folder '{}' has no weights under a known name", path), hint);
}

std::unique_ptr<TensorReader> open_file(const std::string& name) {
  const FileWindow file(name);
  const auto there = std::min<std::int64_t>(file.bytes(), kFileKindBytes);
  switch (const FileKind kind = file_kind(file.text_at(0, there)); kind) {
    case FileKind::safetensors:
      return std::make_unique<SafetensorsReader>(name);
    case FileKind::gguf:
      return std::make_unique<GgufReader>(name);
    case FileKind::zip:
    case FileKind::torch_legacy:
      return std::make_unique<TorchCheckpoint>(name);
    case FileKind::tar:
    case FileKind::gzip:
      return NemoArchive(name).open_weights();
    case FileKind::llmc_model:
      return std::make_unique<LlmcReader>(name);
    default:
      throw StorageError(
          fmt::format("'{}' is {}, which is not a supported format of weights", name,
                      describe(kind)),
          kind == FileKind::git_lfs || kind == FileKind::html
              ? "fetch the file itself, and compare its size with the one that its page names"
          : name.ends_with(".nemo")
              ? "a .nemo file is a tar archive of model_config.yaml and model_weights.ckpt: copy "
                "it again, and compare its size with that of its source"
              : "supported: safetensors, GGUF, torch.save, .nemo and GPT-2 models of llm.c");
  }
}

std::unique_ptr<TensorReader> open_stored(const std::string& name) {
  if (name.ends_with(".json")) return open_index(name);
  const auto shard = shard_name_of(fs::path(name).filename().string());
  if (!shard) return open_file(name);
  const fs::path index = fs::path(name).parent_path() / shard->index();
  return is_there(index) ? open_index(index.string()) : open_numbered(name, *shard);
}

}  // namespace

std::unique_ptr<TensorReader> open_weights(const std::string& path) {
  return dequantised(open_stored(file_in(path)));
}

}  // namespace choir
