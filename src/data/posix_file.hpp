#pragma once
// Open files that read and write whole requests or say which file failed and why, and small files
// read and written in one piece.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace choir {

class PosixFile {
 public:
  /// Throws DataError.
  static PosixFile for_reading(const std::string& path);
  /// Creates or truncates; follows no link. Throws StorageError.
  static PosixFile for_writing(const std::string& path);
  /// A new file whose name begins with `prefix` and ends with random letters. Throws StorageError.
  static PosixFile temporary(const std::string& prefix);
  /// One that is there, for a rank's part of it. Throws StorageError.
  static PosixFile for_updating(const std::string& path);
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

/// Local. Throws DataError, also for a file of more than `most_mib` MiB, before anything is read.
std::string read_whole_file(const std::string& path, std::int64_t most_mib);

/// Caps in MiB, each several times the largest file known.
inline constexpr std::int64_t kMostSettingsMiB = 16;    ///< a form or a marker beside data
inline constexpr std::int64_t kMostTokenizerMiB = 128;  ///< the largest known has 35
inline constexpr std::int64_t kMostListMiB = 1024;      ///< a manifest that is read at once
inline constexpr std::int64_t kMostBinaryMiB = 16'384;  ///< packed indices, labels and ids
/// Local. Under a temporary name, synced, renamed: there is never half of it. Throws StorageError.
void write_whole_file(const std::string& path, std::string_view bytes);
/// Local. Moves a finished file to its name. Throws StorageError.
void rename_file(const std::string& from, const std::string& to);

}  // namespace choir
