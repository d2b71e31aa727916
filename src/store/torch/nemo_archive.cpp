#include "choir/store/torch/nemo_archive.hpp"

#include <fmt/core.h>

#include <filesystem>

#include "choir/core/error.hpp"
#include "src/store/torch/tar_directory.hpp"
#include "src/store/torch/unpacked_file.hpp"

namespace choir {
namespace {

constexpr const char* kWeights = "model_weights.ckpt";
constexpr std::int64_t kLargestConfig = std::int64_t{64} << 20;

FileWindow opened(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw StorageError(fmt::format("'{}' is a folder: the sharded format of NeMo 2", path),
                       "export it with NeMo as one .nemo file");
  return unpacked(path);
}

const TarMember& member_of(const TarDirectory& tar, const std::string& name,
                           const FileWindow& archive) {
  const TarMember* member = tar.find(name);
  if (member == nullptr)
    throw StorageError(fmt::format("the archive '{}' has no '{}'", archive.name(), name));
  return *member;
}

}  // namespace

struct NemoArchive::State {
  FileWindow archive;
  TarDirectory tar;

  explicit State(const std::string& path) : archive(opened(path)), tar(archive) {
    member_of(tar, kWeights, archive);
  }

  FileWindow part(const std::string& name) const {
    const TarMember& member = member_of(tar, name, archive);
    return archive.part(member.data, member.bytes, name);
  }
};

NemoArchive::NemoArchive(const std::string& path) : state_(std::make_unique<State>(path)) {}

NemoArchive::~NemoArchive() = default;

std::unique_ptr<TorchCheckpoint> NemoArchive::open_weights() const {
  return std::make_unique<TorchCheckpoint>(state_->part(kWeights));
}

std::vector<std::string> NemoArchive::members() const {
  std::vector<std::string> names;
  for (const TarMember& member : state_->tar.members()) names.push_back(member.name);
  return names;
}

std::string NemoArchive::read_member(const std::string& name) const {
  const FileWindow member = state_->part(name);
  if (member.bytes() > kLargestConfig)
    throw StorageError(fmt::format("'{}' has {} bytes, more than {}", member.name(), member.bytes(),
                                   kLargestConfig));
  return member.text_at(0, member.bytes());
}

}  // namespace choir
