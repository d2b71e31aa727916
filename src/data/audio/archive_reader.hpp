#pragma once
// Archives (tar, also compressed) read as streams, and text files that may be compressed. Nothing
// is ever written under the name of a member.
#include <memory>
#include <string>
#include <vector>

namespace choir {

/// The files in an archive, in order. Throws AudioError {missing_file, unreadable} naming the
/// archive; DeckError without libarchive in the build.
class ArchiveReader {
 public:
  explicit ArchiveReader(const std::string& path);
  ~ArchiveReader();
  ArchiveReader(ArchiveReader&&) noexcept;

  /// On to the next file (folders and links are passed over); false at the end.
  bool next();
  /// As it stands in the archive, without a "./" in front.
  const std::string& name() const;
  /// The bytes of the file; once.
  std::vector<char> read();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Lines of a text file, plain or gzip (by its first bytes, not by its name). Throws AudioError
/// {missing_file, unreadable}.
class LineReader {
 public:
  explicit LineReader(const std::string& path);
  ~LineReader();

  /// Without the line end; false at the end.
  bool next(std::string& line);
  /// Number of the last line, from 1.
  std::int64_t number() const { return number_; }
  /// "manifest.json:12" of the last line.
  std::string place() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string path_;
  std::int64_t number_ = 0;
};

}  // namespace choir
