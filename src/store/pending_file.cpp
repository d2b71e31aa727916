#include "src/store/pending_file.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/core/sync_directory.hpp"

namespace choir {

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)), created_(std::exchange(other.created_, false)) {}

PendingFile::~PendingFile() {
  std::error_code ignored;
  if (created_) std::filesystem::remove(temporary(), ignored);
}

void PendingFile::create(std::string_view header, std::int64_t bytes) {
  file_.emplace(temporary(), File::Mode::create);
  created_ = true;
  const auto head = static_cast<std::int64_t>(header.size());
  file_->reserve(bytes);
  if (bytes > head) file_->write_at("", 1, bytes - 1);  // for file systems that cannot reserve
  file_->write_at(header.data(), head, 0);
}

void PendingFile::write_at(const void* from, std::int64_t bytes, std::int64_t offset) {
  if (!file_) file_.emplace(temporary(), File::Mode::write);
  file_->write_at(from, bytes, offset);
}

void PendingFile::sync() {
  if (file_) file_->sync();
}

void PendingFile::rename() {
  CHOIR_CHECK(created_, "{} was laid out by another rank", path_);
  std::error_code why;
  std::filesystem::rename(temporary(), path_, why);
  if (why)
    throw StorageError(
        fmt::format("cannot rename '{}' to '{}': {}", temporary(), path_, why.message()),
        "check the permissions of the folder");
  created_ = false;
  sync_directory(std::filesystem::path(path_).parent_path().string());
}

}  // namespace choir
