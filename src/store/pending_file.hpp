#pragma once
// A file that ranks write together under a temporary name; it gets its final name when it is
// complete.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/store/slab_io.hpp"

namespace choir {

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
