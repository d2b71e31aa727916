#pragma once
// Archives (tar, also compressed) read as streams, and text files that may be compressed. No file
// is ever written under the name of a member.
#include <memory>
#include <string>
#include <vector>

namespace choir {

/// Iterates over the files in an archive, in order. Throws AudioError {missing_file, unreadable}
/// naming the archive; DeckError in a build without libarchive.
class ArchiveReader {
 public:
  explicit ArchiveReader(const std::string& path);
  ~ArchiveReader();
  ArchiveReader(ArchiveReader&&) noexcept;

  /// Advances to the next file, skipping folders and links; false at the end.
  bool next();
  /// Name of the file in the archive, without a leading "./".
  const std::string& name() const;
  /// The bytes of the file; may be called once per file.
  std::vector<char> read();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Lines of a text file, plain or gzip (detected by its first bytes, not by its name). Throws
/// AudioError {missing_file, unreadable}.
class LineReader {
 public:
  explicit LineReader(const std::string& path);
  ~LineReader();

  /// Reads the next line without its line end; false at the end.
  bool next(std::string& line);
  /// Number of the last line, from 1.
  std::int64_t number() const { return number_; }
  /// Location of the last line, "manifest.json:12".
  std::string place() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string path_;
  std::int64_t number_ = 0;
};

}  // namespace choir
