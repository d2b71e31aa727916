#pragma once
// Files of the formats of other programs: a window for reading, which is a whole file or an
// uncompressed member of an archive, and a file that ranks write together under a temporary name
// and that gets its final name when it is complete.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "src/store/slab_io.hpp"

namespace choir {

class FileWindow {
 public:
  /// The whole file. Throws StorageError if it cannot be opened or is a folder.
  explicit FileWindow(const std::string& path);
  /// The whole of an open file; `name` is its name in messages.
  FileWindow(std::shared_ptr<const File> file, std::string name);

  /// Bytes [first, first + bytes) of this window, which must contain them.
  FileWindow part(std::int64_t first, std::int64_t bytes, const std::string& name) const;

  /// "model.nemo", or "model.nemo: model_weights.ckpt" for a part.
  const std::string& name() const { return name_; }
  std::int64_t bytes() const { return bytes_; }
  /// Throws StorageError if the window ends before.
  void read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  std::string text_at(std::int64_t offset, std::int64_t bytes) const;

  /// A little-endian number.
  template <class T>
  T number_at(std::int64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read_at(&value, sizeof value, offset);
    return value;
  }

 private:
  std::shared_ptr<const File> file_;
  std::string name_;
  std::int64_t begin_ = 0, bytes_ = 0;
};

class PendingFile {
 public:
  /// Local; touches no file.
  explicit PendingFile(std::string path) : path_(std::move(path)) {}
  /// Removes the file of create() unless it was renamed.
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;

  /// Called by one rank before any other writes: writes the header and zeros up to `bytes`, and
  /// reserves the disk space.
  void create(std::string_view header, std::int64_t bytes);
  /// Called by any rank.
  void write_at(const void* from, std::int64_t bytes, std::int64_t offset);
  /// Syncs the bytes written by this rank to disk.
  void sync();
  /// Called by the rank that created it, after all have synced.
  void rename();

 private:
  std::string temporary() const { return path_ + ".tmp"; }

  std::string path_;
  std::optional<File> file_;
  bool created_ = false;
};

}  // namespace choir
