#include "src/store/tensor_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>

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

// In order of preference: the safe format first if a folder has both.
constexpr std::array<const char*, 6> kNames{
    "model.safetensors",         "model.safetensors.index.json",
    "adapter_model.safetensors", "pytorch_model.bin",
    "adapter_model.bin",         "ckpt.pt"};

std::string file_in(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : kNames)
    if (const fs::path file = fs::path(path) / name; fs::exists(file, ignored))
      return file.string();
  std::string hint = "give the file itself";
  if (fs::exists(fs::path(path) / "pytorch_model.bin.index.json", ignored))
    hint = "it has shards of torch.save: save the model again as safetensors";
  if (fs::is_directory(fs::path(path) / "weights", ignored))
    hint = "it looks like the sharded format of NeMo 2: export it as one .nemo file";
  throw StorageError(fmt::format("the folder '{}' has no weights under a known name", path), hint);
}

}  // namespace

std::unique_ptr<TensorReader> open_weights(const std::string& path) {
  const std::string name = file_in(path);
  if (name.ends_with(".json")) return dequantised(std::make_unique<SafetensorsReader>(name));
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

}  // namespace choir
