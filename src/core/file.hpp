#pragma once
// Files: checks that a name is a regular file (opening a pipe would block for ever, and a device
// never ends), bounded reading of small files, open files with whole requests, and durable writing
// and renaming.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <istream>
#include <string>
#include <string_view>

namespace choir {

/// "a pipe", "a folder" ...; "" for a regular file.
std::string unusual_kind(mode_t mode);

/// Throws StorageError if something other than a regular file (or a link to one) has this name. The
/// name may be free. Opens nothing. Local.
void require_regular(const std::string& path);

struct CappedText {
  std::string text;
  std::string fault;  ///< "has more than 16 MiB", "cannot be read: ..."; empty: none
};

/// The text of an open file, at most `most_mib` MiB.
CappedText read_capped(std::istream& file, std::size_t most_mib);

enum class Pipes : bool { refused, read };

/// The whole file, at most `most_mib` MiB. Local.
CappedText read_capped_file(const std::string& path, std::size_t most_mib,
                            Pipes pipes = Pipes::refused);

/// "has 21474836480 bytes, more than 16 MiB", or "" if the file is not larger or does not exist.
/// For files that are read line by line. Local.
std::string file_excess(const std::string& path, std::size_t most_mib);

class PosixFile {
 public:
  /// Throws DataError.
  static PosixFile for_reading(const std::string& path);
  /// Creates or truncates the file; follows no link. Throws StorageError.
  static PosixFile for_writing(const std::string& path);
  /// Creates a file whose name is `prefix` with random letters appended. Throws StorageError.
  static PosixFile temporary(const std::string& prefix);
  /// Opens an existing file, so that a rank can write its part. Throws StorageError.
  static PosixFile for_updating(const std::string& path);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&&) = delete;

  std::int64_t size() const;
  /// Throws DataError if the file ends first.
  void read_at(void* to, std::size_t bytes, std::int64_t offset) const;
  void write_at(const void* from, std::size_t bytes, std::int64_t offset);
  void sync();
  const std::string& path() const { return path_; }

 private:
  PosixFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

/// A new text file that grows by lines; each is written at once. Local. Throws StorageError.
class LineFile {
 public:
  explicit LineFile(std::string path);
  void write(std::string_view line);

 private:
  void check() const;
  std::string path_;
  std::ofstream file_;
};

/// Local. Throws DataError, also for a file of more than `most_mib` MiB, before reading it.
std::string read_whole_file(const std::string& path, std::int64_t most_mib);

/// Caps in MiB, each several times the largest file known.
inline constexpr std::int64_t kMostSettingsMiB = 16;  ///< a form or a marker file of a data folder
inline constexpr std::int64_t kMostTokenizerMiB = 128;  ///< the largest known file has 35
inline constexpr std::int64_t kMostListMiB = 1024;      ///< a manifest
inline constexpr std::int64_t kMostBinaryMiB = 16'384;  ///< packed indices, labels and ids
/// Local. Writes under a temporary name, syncs and renames, so the file is never incomplete. Throws
/// StorageError.
void write_whole_file(const std::string& path, std::string_view bytes);
/// Local. Appends in one write, so that programs that write at the same time keep whole lines, and
/// creates the file if there is none. Returns "" or a message with the reason.
std::string append_to_file(const std::string& path, std::string_view text);
/// Local. Renames a finished file. Throws StorageError.
void rename_file(const std::string& from, const std::string& to);

/// After the return, new files and renames in `directory` ("" is the current one) are on disk. File
/// systems that cannot sync a directory are assumed to rename synchronously. Throws StorageError.
/// Local.
void sync_directory(const std::string& directory);

}  // namespace choir
