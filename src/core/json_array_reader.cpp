#include "src/core/json_array_reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::size_t kMostElementBytes = std::size_t{64} << 20;

bool is_json_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

bool JsonArrayReader::begins(std::string_view text) {
  const auto skip = [&] {
    while (!text.empty() && is_json_blank(text.front())) text.remove_prefix(1);
  };
  skip();
  if (!text.starts_with('[')) return false;
  text.remove_prefix(1);
  const bool ends_line = trim(text.substr(0, text.find('\n'))).empty();
  skip();
  return ends_line || text.front() == '{' || text.front() == ']';
}

JsonArrayReader::JsonArrayReader(std::string first, NextPiece next_piece, std::string source)
    : piece_(std::move(first)), next_piece_(std::move(next_piece)), source_(std::move(source)) {
  at_ = piece_.find('[') + 1;
  number_ += std::count(piece_.begin(), piece_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
}

void JsonArrayReader::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}:{}: {}", source_, number_, what),
                  "a file is one JSON array of objects, or one object per line");
}

bool JsonArrayReader::more() {
  while (at_ == piece_.size()) {
    piece_.clear();
    at_ = 0;
    if (!next_piece_(piece_)) return false;
  }
  return true;
}

bool JsonArrayReader::skip_blanks() {
  while (more()) {
    if (!is_json_blank(piece_[at_])) return true;
    number_ += piece_[at_++] == '\n';
  }
  return false;
}

bool JsonArrayReader::next(std::string& element) {
  element.clear();
  if (ended_) return false;
  if (!skip_blanks()) refuse("the array is not closed");
  if (piece_[at_] == ']') {
    ++at_;
    ended_ = true;
    if (skip_blanks()) refuse("text follows the array");
    return false;
  }
  if (!first_) {
    if (piece_[at_] != ',') refuse("no comma stands between two elements of the array");
    ++at_;
    if (!skip_blanks()) refuse("the array is not closed");
  }
  first_ = false;
  element_number_ = number_;
  int depth = 0;
  bool in_text = false, escaped = false;
  while (more()) {
    const char c = piece_[at_];
    if (!in_text && depth == 0 && (c == ',' || c == ']')) return true;
    element += c;
    ++at_;
    number_ += c == '\n';
    if (element.size() > kMostElementBytes) refuse("an element of the array has more than 64 MiB");
    if (in_text) {
      in_text = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return true;
    }
  }
  refuse("the array is not closed");
}

TextRows::TextRows(std::string_view text, std::string source)
    : rest_(text), source_(std::move(source)) {
  if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
}

bool TextRows::next_line(std::string& line) {
  if (rest_.empty()) return false;
  const std::size_t end = std::min(rest_.find('\n'), rest_.size());
  line = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

std::int64_t TextRows::number() const {
  return array_ == nullptr ? number_ : array_->number();
}

bool TextRows::next(std::string& row) {
  if (array_ == nullptr) {
    if (number_ == 0 && JsonArrayReader::begins(rest_))
      array_ = std::make_unique<JsonArrayReader>(
          std::string(rest_), [](std::string&) { return false; }, source_);
    else if (!next_line(row))
      return false;
    ++number_;
    if (array_ == nullptr) return true;
  }
  return array_->next(row);
}

}  // namespace choir
