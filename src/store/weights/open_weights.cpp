#include "src/store/tensor_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file_kind.hpp"
#include "src/store/gguf/gguf.hpp"
#include "src/store/llmc/llmc_model.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "src/store/torch/nemo_archive.hpp"
#include "src/store/torch/torch_checkpoint.hpp"
#include "src/store/weight_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// The tensors of several files as those of one.
class JoinedReader final : public TensorReader {
 public:
  JoinedReader(const std::string& path, std::vector<std::unique_ptr<TensorReader>> parts)
      : TensorReader(path), parts_(std::move(parts)) {
    std::vector<TensorEntry> entries;
    for (const auto& part : parts_)
      for (const TensorEntry& entry : part->tensors()) {
        entries.push_back(entry);
        part_of_.push_back(part.get());
      }
    set_tensors(std::move(entries));
  }

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override {
    part_of_[index]->read_stored(tensors()[index].name, first, count, to);
  }

  std::vector<std::unique_ptr<TensorReader>> parts_;
  std::vector<const TensorReader*> part_of_;  // of each tensor
};

/// The files of a model in several parts, of which `path` is one by its name,
/// NAME-00001-of-00003.safetensors or .bin; empty for other names.
std::vector<std::string> parts_beside(const std::string& path) {
  static const std::regex kPart("(.*)-([0-9]{5})-of-([0-9]{5})(\\.safetensors|\\.bin)");
  std::smatch part;
  const std::string name = fs::path(path).filename().string();
  if (!std::regex_match(name, part, kPart)) return {};
  std::vector<std::string> files, missing;
  const int parts = std::stoi(part[3]);
  for (int number = 1; number <= parts; ++number) {
    const std::string file =
        fmt::format("{}-{:05}-of-{}{}", part[1].str(), number, part[3].str(), part[4].str());
    files.push_back((fs::path(path).parent_path() / file).string());
    std::error_code ignored;
    if (!fs::exists(files.back(), ignored)) missing.push_back(file);
  }
  if (!missing.empty())
    throw StorageError(
        fmt::format("'{}' is one of {} files of a model, {} of which are not beside it; the first "
                    "is {}",
                    path, parts, missing.size(), missing.front()),
        "download all files of the model");
  return files;
}

/// The first part of a model in the folder; "" if there is none.
std::string part_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    for (const char* stem : {"model-", "pytorch_model-"})
      if (name.starts_with(stem) && name.find("-of-") != name.npos &&
          (name.ends_with(".safetensors") || name.ends_with(".bin")))
        names.push_back(entry.path().string());
  }
  // The safe format is first by its name, too.
  return names.empty() ? "" : *std::min_element(names.begin(), names.end());
}

// In order of preference: the safe format first if a folder has both.
constexpr std::array<const char*, 6> kNames{
    "model.safetensors",         "model.safetensors.index.json",
    "adapter_model.safetensors", "pytorch_model.bin",
    "adapter_model.bin",         "ckpt.pt"};

std::string file_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : kNames)
    if (const fs::path file = fs::path(path) / name; fs::exists(file, ignored))
      return file.string();
  if (const std::string part = part_in(path); !part.empty()) return part;
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
      return dequantised(std::make_unique<SafetensorsReader>(name));
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
                "it "
                "again, and compare its size with that of its source"
              : "supported: safetensors, GGUF, torch.save, .nemo and GPT-2 models of llm.c");
  }
}

}  // namespace

std::unique_ptr<TensorReader> open_weights(const std::string& path) {
  const std::string name = file_in(path);
  if (name.ends_with(".json")) return dequantised(std::make_unique<SafetensorsReader>(name));
  const std::vector<std::string> files = parts_beside(name);
  if (files.size() < 2) return open_file(name);
  std::vector<std::unique_ptr<TensorReader>> parts;
  for (const std::string& file : files) parts.push_back(open_file(file));
  return std::make_unique<JoinedReader>(name, std::move(parts));
}

}  // namespace choir
