#pragma once
// The rows of JSON lines, one field of the object in each line, and those of tars; and the kind of
// a file that is to be read as plain text. Local functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/data/sources/codecs.hpp"

namespace choir {

/// Lines that arrive from a stream. CR before the line end and a byte order mark at the start of
/// the file are not part of a line. Only one line is in memory, and never more than `most` bytes.
class LineScanner {
 public:
  /// With `starts_file` the stream begins at the start of the file.
  LineScanner(std::unique_ptr<ByteStream> bytes, std::size_t most, bool starts_file);

  enum class Line { read, too_long, end };
  /// Reads the next line; `line` is empty for one that is longer than `most`. An error of the
  /// stream is thrown after the lines before it.
  Line next(std::string& line);
  std::int64_t number() const { return number_; }      ///< lines so far
  std::int64_t offset() const { return offset_; }      ///< first byte of the last line
  std::int64_t position() const { return position_; }  ///< the byte after the last line

 private:
  bool fill();

  std::unique_ptr<ByteStream> bytes_;
  std::size_t most_;
  bool starts_file_;
  std::string pending_;
  std::size_t at_ = 0;
  std::int64_t number_ = 0, offset_ = 0, position_ = 0;
};

/// A kind of file that is neither text nor raw tokens, and the cure, for messages.
struct KnownKind {
  std::string_view name, cure;
};
/// The kind whose beginning of at least `least_bytes` bytes a file has: a few bytes may also be the
/// first of raw tokens.
std::optional<KnownKind> known_kind(std::string_view head, std::size_t least_bytes);

struct PlainText {
  std::int64_t mark = 0;  ///< bytes of the byte-order mark of UTF-8 at the beginning: 0 or 3
  /// A kind of text whose marks are read as text, although its user may want its words alone:
  /// HTML, XML, a table, JSON. Source code, LaTeX, Markdown, subtitles and mail are plain text.
  std::optional<KnownKind> rather;
};
/// Local. Throws DataError for a file that begins like another kind: an archive, a compressed file,
/// an array, weights, Parquet, UTF-16, a list of JSON, lines of JSON objects with the text `field`,
/// a table by its name, or bytes that no text has.
PlainText require_plain_text(const std::string& path, std::string_view field);

/// The text of a row, or the reason why it has none. An absent text (null) is empty.
struct RowText {
  std::string text, fault, detail;  ///< `detail` belongs to the row, `fault` to many rows
};
/// Reads the field `field` of the object in a line. Never throws for the contents of the line.
RowText text_of_row(std::string_view line, const std::string& field);

/// The texts in an archive of samples as WebDataset writes them: members of one sample follow one
/// another and share their name up to its first dot. The text of a sample is its .txt, or else a
/// field of its .json; other members are skipped. Names are only compared and printed: nothing is
/// ever written under them, so "../" in a name is harmless.
///
/// Calls use(member, row) for each sample with a .txt or a .json, in the order of the archive,
/// which may be packed with gzip or zstd. A member of more than `most` bytes has a fault. Local.
/// Throws DataError that names the archive and the last member if it is damaged or cut off,
/// DeckError in a build without libarchive.
using UseMember = std::function<void(const std::string& member, RowText&& row)>;
void read_tar_texts(const std::string& path, const std::string& field, std::size_t most,
                    const UseMember& use);

}  // namespace choir
