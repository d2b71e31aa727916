#pragma once
// An open file that reads and writes whole requests or says which file failed and why.
#include <cstddef>
#include <cstdint>
#include <string>

namespace choir {

class PosixFile {
 public:
  /// Throws DataError.
  static PosixFile for_reading(const std::string& path);
  /// Creates or truncates. Throws StorageError.
  static PosixFile for_writing(const std::string& path);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&&) = delete;

  std::int64_t size() const;
  /// Throws DataError when the file ends first.
  void read_at(void* to, std::size_t bytes, std::int64_t offset) const;
  void write_at(const void* from, std::size_t bytes, std::int64_t offset);
  void sync();
  const std::string& path() const { return path_; }

 private:
  PosixFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace choir
