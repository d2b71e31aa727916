#pragma once
// Archives (tar, also compressed) read as streams, and text files that may be compressed. No file
// is ever written under the name of a member.
#include <memory>
#include <string>
#include <vector>

#include "src/core/json_array_reader.hpp"

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

/// Lines of a text file, plain or gzip (detected by its first bytes, not by its name). If the file
/// is one JSON array, each of its elements is read like a line. Throws AudioError {missing_file,
/// unreadable}, and DataError for a damaged array.
class LineReader {
 public:
  explicit LineReader(const std::string& path);
  ~LineReader();

  /// Reads the next line without its line end, or the next element; false at the end.
  bool next(std::string& line);
  /// Number of the last line, or of the line in which the last element begins, from 1.
  std::int64_t number() const { return number_; }
  /// Location of the last line, "manifest.json:12".
  std::string place() const;

 private:
  struct State;
  void open_array();
  bool next_line(std::string& line);

  std::unique_ptr<State> state_;
  std::string path_;
  std::int64_t number_ = 0;
  std::unique_ptr<JsonArrayReader> array_;
};

/// Local. All lines of LineReader, each with a line end.
std::string read_lines(const std::string& path);

}  // namespace choir
