#include "src/store/file_window.hpp"

#include <fmt/core.h>

#include <filesystem>

#include "choir/core/error.hpp"

namespace choir {
namespace {

std::shared_ptr<const File> opened(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw StorageError("'" + path + "' is a folder, not a file");
  return std::make_shared<const File>(path, File::Mode::read);
}

}  // namespace

FileWindow::FileWindow(const std::string& path) : FileWindow(opened(path), path) {}

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

}  // namespace choir
