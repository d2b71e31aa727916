#pragma once
// Reads a JSON array of objects where lines with one object each are expected: it is read in
// pieces and divided into its elements, which are parsed by those who parse lines. Local.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace choir {

class JsonArrayReader {
 public:
  /// Reads the next piece of the text, with its line ends; false at the end.
  using NextPiece = std::function<bool(std::string&)>;

  /// True if a text with this beginning is an array of objects: a bracket, and then a brace, a
  /// bracket or the end of the line. Any other text may begin with a bracket.
  static bool begins(std::string_view text);
  /// `first`: the first piece; `source` names the file in messages.
  JsonArrayReader(std::string first, NextPiece next_piece, std::string source);

  /// The text of the next element; false at the end. Throws DataError with the line if the array is
  /// not closed or if its elements are not separated by commas. Line ends in an element are kept.
  bool next(std::string& element);
  /// The line in which the last element begins, from 1.
  std::int64_t number() const { return element_number_; }

 private:
  bool more();  ///< false at the end of the text
  /// Skips white space; false at the end of the text.
  bool skip_blanks();
  [[noreturn]] void refuse(const std::string& what) const;

  std::string piece_;
  std::size_t at_ = 0;
  std::int64_t number_ = 1, element_number_ = 1;
  NextPiece next_piece_;
  std::string source_;
  bool first_ = true, ended_ = false;
};

/// The lines of a text, or the elements of the array that it is. A byte-order mark is skipped.
class TextRows {
 public:
  /// `text` must outlive this object; `source` names it in messages.
  TextRows(std::string_view text, std::string source);
  /// The next line without its line end, or the next element; false at the end. Throws DataError as
  /// JsonArrayReader does.
  bool next(std::string& row);
  /// The line in which the last row begins, from 1.
  std::int64_t number() const;

 private:
  bool next_line(std::string& line);

  std::string_view rest_;
  std::string source_;
  std::int64_t number_ = 0;
  std::unique_ptr<JsonArrayReader> array_;
};

}  // namespace choir
