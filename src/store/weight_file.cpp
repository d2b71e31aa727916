#include "src/store/weight_file.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"

namespace choir {
namespace {

std::shared_ptr<const File> shared_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw StorageError("'" + path + "' is a folder, not a file");
  return std::make_shared<const File>(path, File::Mode::read);
}

}  // namespace

FileWindow::FileWindow(const std::string& path) : FileWindow(shared_file(path), path) {}

FileWindow::FileWindow(std::shared_ptr<const File> file, std::string name)
    : file_(std::move(file)), name_(std::move(name)), bytes_(file_->bytes()) {}

FileWindow FileWindow::part(std::int64_t first, std::int64_t bytes, const std::string& name) const {
  CHOIR_CHECK(first >= 0 && bytes >= 0 && first <= bytes_ - bytes, "{} + {} of {}", first, bytes,
              bytes_);
  FileWindow part = *this;
  part.name_ += ": " + name;
  part.begin_ += first;
  part.bytes_ = bytes;
  return part;
}

void FileWindow::read_at(void* to, std::int64_t bytes, std::int64_t offset) const {
  if (offset < 0 || bytes < 0 || bytes > bytes_ || offset > bytes_ - bytes)
    throw StorageError(fmt::format("'{}' ends at byte {}, where {} bytes from {} on are expected",
                                   name_, bytes_, bytes, offset),
                       "the copy or download may be incomplete");
  file_->read_at(to, bytes, begin_ + offset);
}

std::string FileWindow::text_at(std::int64_t offset, std::int64_t bytes) const {
  if (bytes < 0 || bytes > bytes_)
    read_at(nullptr, bytes, offset);  // throws before memory is allocated
  std::string text(static_cast<std::size_t>(bytes), '\0');
  read_at(text.data(), bytes, offset);
  return text;
}

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
