#pragma once
// A file that ranks write together under a temporary name, and that appears under its own when it
// is complete.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/store/slab_io.hpp"

namespace choir {

class PendingFile {
 public:
  /// Local; touches nothing.
  explicit PendingFile(std::string path) : path_(std::move(path)) {}
  /// Removes what create() made, unless it was renamed.
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;

  /// By one rank, before any other writes: the header, zeros behind it up to `bytes`, and the space
  /// for them taken from the disk.
  void create(std::string_view header, std::int64_t bytes);
  /// By any rank.
  void write_at(const void* from, std::int64_t bytes, std::int64_t offset);
  /// What this rank wrote is on the disk.
  void sync();
  /// By the rank that created it, when all have synced.
  void rename();

 private:
  std::string temporary() const { return path_ + ".tmp"; }

  std::string path_;
  std::optional<File> file_;
  bool created_ = false;
};

}  // namespace choir
