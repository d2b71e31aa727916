#include "choir/core/json.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>
#include "choir/core/json_value.hpp"

#include "choir/core/capped_text.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

using nlohmann::json;

/// Line and column from 1 of a byte offset, and the text of that line.
struct Position {
  std::size_t line = 1, column = 1;
  std::string_view text;
};

Position locate(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  Position at;
  std::size_t start = 0;
  for (std::size_t i = 0; i < offset; ++i)
    if (text[i] == '\n') ++at.line, start = i + 1;
  at.column = offset - start + 1;
  at.text = text.substr(start, text.find('\n', start) - start);
  return at;
}

[[noreturn]] void fail(std::string_view text, const std::string& source, std::size_t offset,
                       const std::string& what, const std::string& hint) {
  const Position at = locate(text, offset);
  // A caret below the place; the line is shortened from the left when it is very long.
  constexpr std::size_t kShown = 90;
  const std::size_t skip = at.column > kShown ? at.column - kShown / 2 : 0;
  const std::string caret(at.column - 1 - std::min(skip, at.column - 1), ' ');
  std::string line(at.text.substr(std::min(skip, at.text.size()), kShown));
  std::replace(line.begin(), line.end(), '\t', ' ');
  throw DeckError(
      fmt::format("{}:{}:{}: {}\n  | {}\n  | {}^", source, at.line, at.column, what, line, caret),
      hint);
}

/// Counts how far the lexer has read: the library reports positions for errors only.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, std::size_t* read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_, ++*read_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }

 private:
  const char* at_ = nullptr;
  std::size_t* read_ = nullptr;
};

/// Builds the tree, refuses duplicates, and notes the line of each value.
class Builder {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  Builder(std::string_view text, const std::string& source, const std::size_t* read)
      : text_(text), source_(source), read_(read) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    Level& level = levels_.back();
    level.key = name;
    const std::string path = next_path();
    if (path.size() > kLongestPath)
      fail(text_, source_, *read_ - std::min(*read_, name.size() + 2),
           fmt::format("the names of a key and of what it is in have {} bytes together",
                       path.size()),
           fmt::format("at most {}", kLongestPath));
    if (level.node->contains(name))
      fail(text_, source_, *read_ - std::min(*read_, name.size() + 2),
           fmt::format("key '{}' is given twice{}", path, first_place(path)), "remove one of them");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    std::string what = error.what();
    // "[json.exception...] parse error at line 1, column 2: syntax error ...": the part after is
    // ours.
    const std::size_t tag = what.find("] "), cut = what.find(": ");
    if (what.starts_with("[json") && tag != std::string::npos)
      what = what.substr(cut != std::string::npos ? cut + 2 : tag + 2);
    what = what.substr(0, what.find("; last read"));
    fail(text_, source_, position == 0 ? 0 : position - 1, "not valid JSON: " + what,
         hint(position));
  }

  json root;
  std::map<std::string, int> lines;

 private:
  // A text may be all keys and lists: what is kept of the places must not grow as their product.
  static constexpr std::size_t kLongestPath = 4096;
  static constexpr std::size_t kMostPathBytes = std::size_t{64} << 20;

  std::string first_place(const std::string& path) const {
    const auto found = lines.find(path);
    return found == lines.end() ? "" : fmt::format(" (first on line {})", found->second);
  }
  /// The line of a byte. Asked for in ascending order, so that all questions read the text once.
  int line_at(std::size_t offset) {
    line_ +=
        static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                    text_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    counted_ = offset;
    return line_;
  }

  struct Level {
    json* node;
    std::string path;
    std::string key;
  };

  std::string hint(std::size_t position) const {
    std::string_view before =
        text_.substr(0, std::min(position == 0 ? 0 : position - 1, text_.size()));
    const std::string_view seen = trim(before);
    const char at = position >= 1 && position <= text_.size() ? text_[position - 1] : '\0';
    if ((at == '}' || at == ']') && !seen.empty() && seen.back() == ',')
      return "remove the comma before the closing bracket";
    if (at == '"' && !seen.empty()) return "is a comma missing before this?";
    if (at == '\0') return "is a closing bracket or quote missing?";
    return "keys and texts stand in double quotes; true, false and null are lower case";
  }

  std::string next_path() const {
    if (levels_.empty()) return {};
    const Level& level = levels_.back();
    if (level.node->is_array()) return fmt::format("{}[{}]", level.path, level.node->size());
    return level.path.empty() ? level.key : level.path + "." + level.key;
  }

  template <class Value>
  json* attach(Value&& value) {
    // A number is known only after the character behind it was read: step back to its last digit.
    std::size_t end = std::min(*read_, text_.size());
    while (end > 1 && std::isspace(static_cast<unsigned char>(text_[end - 1]))) --end;
    const int line = line_at(std::max(counted_, end == 0 ? 0 : end - 1));
    if (std::string path = next_path(); path_bytes_ + path.size() <= kMostPathBytes) {
      path_bytes_ += path.size();
      lines[std::move(path)] = line;
    }
    if (levels_.empty()) return &(root = std::forward<Value>(value));
    Level& level = levels_.back();
    if (level.node->is_array()) {
      level.node->push_back(std::forward<Value>(value));
      return &level.node->back();
    }
    return &((*level.node)[level.key] = std::forward<Value>(value));
  }
  template <class Value>
  bool put(Value&& value) {
    attach(std::forward<Value>(value));
    return true;
  }
  bool open(json&& empty) {
    constexpr std::size_t kDeepest = 64;
    if (levels_.size() >= kDeepest)
      fail(text_, source_, *read_, "nested deeper than 64 levels", "a deck has three");
    std::string path = next_path();
    json* node = attach(std::move(empty));
    levels_.push_back({node, std::move(path), {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& source_;
  const std::size_t* read_;
  std::vector<Level> levels_;
  std::size_t counted_ = 0, path_bytes_ = 0;
  int line_ = 1;
};

}  // namespace

JsonDocument::JsonDocument(std::shared_ptr<const json> root, std::string source,
                           std::map<std::string, int> lines)
    : root_(std::move(root)), source_(std::move(source)), lines_(std::move(lines)) {}

int JsonDocument::line_of(const std::string& path) const {
  const auto found = lines_.find(path);
  return found == lines_.end() ? 0 : found->second;
}

std::string JsonDocument::place_of(const std::string& path) const {
  const int line = line_of(path);
  return line == 0 ? source_ : fmt::format("{}:{}", source_, line);
}

JsonDocument parse_json(std::string_view text, const std::string& source) {
  std::size_t read = 0;
  Builder builder(text, source, &read);
  const CountingIterator first(text.data(), &read), last(text.data() + text.size(), &read);
  json::sax_parse(first, last, &builder, json::input_format_t::json, true, true);
  return {std::make_shared<const json>(std::move(builder.root)), source, std::move(builder.lines)};
}

std::string read_deck_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw DeckError("'" + path + "' is a directory, not a deck",
                    "name a file, as inputs/debug.json");
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw DeckError(fmt::format("cannot read the deck '{}': {}", path, std::strerror(errno)),
                    "check the path; the decks that come with choir are in inputs/");
  constexpr std::size_t kMostMiB = 16;
  auto [text, fault] = read_capped(file, kMostMiB);
  if (!fault.empty())
    throw DeckError(fmt::format("the deck '{}' {}", path, fault), "is it a file of data?");
  if (trim(text).empty())
    throw DeckError("the deck '" + path + "' is empty", "copy one from inputs/");
  return text;
}

}  // namespace choir
