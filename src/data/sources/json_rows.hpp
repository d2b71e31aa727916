#pragma once
// The texts of JSON lines: one field of the object in each line. Local functions.

#include <cstdint>
#include <functional>
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

/// The text of a row, or the reason why it has none. An absent text (null) is empty.
struct RowText {
  std::string text, fault, detail;  ///< `detail` belongs to the row, `fault` to many rows
};
/// Reads the field `field` of the object in a line. Never throws for the contents of the line.
RowText text_of_row(std::string_view line, const std::string& field);

}  // namespace choir
