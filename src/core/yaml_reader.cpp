#include "src/core/yaml_reader.hpp"

#include <fmt/core.h>

#include <charconv>
#include <string_view>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr int kDeepest = 32;
constexpr std::size_t kMostMib = 16, kMostValues = std::size_t{1} << 18;

struct Line {
  std::size_t number = 0, indent = 0;
  std::string_view text;  ///< without indentation and trailing blanks
};

void append_code_point(std::string& to, char32_t c) {
  const auto byte = [&](char32_t bits) { to += static_cast<char>(bits); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) return byte(0xC0 | (c >> 6)), byte(0x80 | (c & 63));
  if (c < 0x10000)
    return byte(0xE0 | (c >> 12)), byte(0x80 | ((c >> 6) & 63)), byte(0x80 | (c & 63));
  byte(0xF0 | (c >> 18)), byte(0x80 | ((c >> 12) & 63));
  byte(0x80 | ((c >> 6) & 63)), byte(0x80 | (c & 63));
}

nlohmann::json plain(std::string_view word) {
  if (word.empty() || word == "null" || word == "~" || word == "Null" || word == "NULL")
    return nullptr;
  if (word == "true" || word == "True" || word == "TRUE") return true;
  if (word == "false" || word == "False" || word == "FALSE") return false;
  const char *first = word.data(), *last = first + word.size();
  std::int64_t whole = 0;
  if (const auto read = std::from_chars(first, last, whole);
      read.ec == std::errc() && read.ptr == last)
    return whole;
  double real = 0;
  const bool digit = word.find_first_of("0123456789") != std::string_view::npos;
  if (const auto read = std::from_chars(first, last, real);
      digit && read.ec == std::errc() && read.ptr == last)
    return real;
  return std::string(word);
}

/// Determines from the lines of a scalar, taken in order, if it continues in the next line. Each
/// character is read once.
class ScalarEnd {
 public:
  /// Takes a line. True if it ends with a backslash, which joins the next line without a blank.
  bool take(std::string_view part) {
    if (empty_) first_ = part.empty() ? '\0' : part[0];
    empty_ = false;
    if (first_ != '"' && first_ != '\'' && first_ != '[' && first_ != '{') return false;
    const bool bracket = first_ == '[' || first_ == '{';
    char before = ' ';
    for (std::size_t at = 0; at < part.size(); before = part[at++]) {
      const char c = part[at];
      if (quote_ == '"' && c == '\\') {
        if (++at == part.size()) return !bracket;
      } else if (quote_ == '\'' && c == quote_ && part.substr(at + 1).starts_with(c)) {
        ++at;
      } else if (quote_ != '\0') {
        if (c == quote_) quote_ = '\0', closed_ = !bracket;
      } else if ((c == '"' || c == '\'') &&
                 std::string_view(" [{,:").find(before) != std::string_view::npos) {
        if (!closed_) quote_ = c;
      } else if (bracket) {
        depth_ += (c == '[' || c == '{') - (c == ']' || c == '}');
      }
    }
    return false;
  }
  bool open() const { return quote_ != '\0' || depth_ > 0; }
  bool is_quoted() const { return first_ == '"' || first_ == '\''; }

 private:
  bool empty_ = true, closed_ = false;
  char first_ = '\0', quote_ = '\0';
  int depth_ = 0;
};

class YamlReader {
 public:
  YamlReader(std::string_view text, std::string source) : source_(std::move(source)), rest_(text) {
    advance();
  }

  nlohmann::json document() {
    skip_empty();
    if (done()) return nullptr;
    nlohmann::json value = block(line().indent, 0);
    skip_empty();
    if (!done()) refuse(line().number, "text that belongs to no value");
    return value;
  }

 private:
  [[noreturn]] void refuse(std::size_t number, const std::string& what) const {
    throw StorageError(fmt::format("'{}', line {}: {} is not understood", source_, number, what),
                       "save the configuration again with NeMo");
  }
  bool done() const { return done_; }
  const Line& line() const { return line_; }
  void skip_empty() {
    while (!done() && line().text.empty()) advance();
  }

  /// Moves to the next line that is not a comment.
  void advance() {
    for (; !rest_.empty();) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      std::string_view text = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      while (text.ends_with(' ') || text.ends_with('\r')) text.remove_suffix(1);
      const std::size_t indent = std::min(text.find_first_not_of(' '), text.size());
      text.remove_prefix(indent);
      if (text.starts_with('#') || (text == "---" && !begun_)) continue;
      if (text.starts_with('\t')) refuse(number_, "a tab for indentation");
      begun_ = true;
      line_ = {number_, indent, text};
      return;
    }
    done_ = true;
  }

  /// Limits the number of values, whose memory is independent of the length of their text.
  void count_value(std::size_t number) {
    if (++values_ > kMostValues)
      refuse(number, fmt::format("a text of more than {} values", kMostValues));
  }

  static bool is_item(std::string_view text) { return text == "-" || text.starts_with("- "); }

  /// End of the key of a "key: value"; npos if the text is not one.
  std::size_t key_end(std::string_view text) const {
    if (text.starts_with('"') || text.starts_with('\'')) {
      const std::size_t close = quoted_end(text);
      const bool key = close != std::string_view::npos && text.substr(close + 1).starts_with(':');
      return key ? close + 1 : std::string_view::npos;
    }
    if (text.starts_with('[') || text.starts_with('{')) return std::string_view::npos;
    for (std::size_t at = text.find(':'); at != std::string_view::npos; at = text.find(':', at + 1))
      if (at + 1 == text.size() || text[at + 1] == ' ') return at;
    return std::string_view::npos;
  }

  /// Position of the quote that closes the first one.
  static std::size_t quoted_end(std::string_view text) {
    const char quote = text.front();
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (quote == '"' && text[at] == '\\')
        ++at;
      else if (text[at] == quote && quote == '\'' && text.substr(at + 1).starts_with(quote))
        ++at;
      else if (text[at] == quote)
        return at;
    }
    return std::string_view::npos;
  }

  nlohmann::json block(std::size_t indent, int depth) {
    count_value(line().number);
    if (depth > kDeepest) refuse(line().number, "nesting deeper than 32");
    if (is_item(line().text)) return list(indent, depth);
    if (key_end(line().text) != std::string_view::npos) return mapping(indent, depth);
    const std::size_t number = line().number;
    const std::string text = joined(line().text, indent == 0 ? 0 : indent - 1);
    return scalar(text, number, depth);
  }

  nlohmann::json list(std::size_t indent, int depth) {
    nlohmann::json items = nlohmann::json::array();
    for (skip_empty(); !done() && line().indent == indent && is_item(line().text); skip_empty()) {
      const std::string_view rest = line().text.substr(1);
      const std::size_t blanks = std::min(rest.find_first_not_of(' '), rest.size());
      if (blanks == rest.size()) {
        advance();
        items.push_back(nested(indent + 1, depth));
        continue;
      }
      // The text after the dash is a block that begins here.
      line_.indent = indent + 1 + blanks;
      line_.text = rest.substr(blanks);
      items.push_back(item(indent, depth));
    }
    return items;
  }

  nlohmann::json item(std::size_t indent, int depth) {
    const std::string_view text = line().text;
    if (is_item(text) || key_end(text) != std::string_view::npos)
      return block(line().indent, depth + 1);
    const std::size_t number = line().number;
    return scalar(joined(text, indent), number, depth);
  }

  nlohmann::json mapping(std::size_t indent, int depth) {
    nlohmann::json object = nlohmann::json::object();
    for (skip_empty(); !done() && line().indent == indent; skip_empty()) {
      const std::string_view text = line().text;
      const std::size_t number = line().number, end = key_end(text);
      if (end == std::string_view::npos) refuse(number, fmt::format("'{}'", text.substr(0, 20)));
      const nlohmann::json name = scalar(std::string(text.substr(0, end)), number, depth);
      const std::string key =
          name.is_string() ? name.get<std::string>() : std::string(text.substr(0, end));
      if (object.contains(key)) refuse(number, fmt::format("a second '{}'", key.substr(0, 60)));
      std::string_view rest = text.substr(end + 1);
      while (rest.starts_with(' ')) rest.remove_prefix(1);
      if (rest.empty()) {
        advance();
        object[key] = value_below(indent, depth);
      } else {
        object[key] = scalar(joined(rest, indent), number, depth);
      }
    }
    if (!done() && line().indent > indent)
      refuse(line().number, "indentation that matches no level");
    return object;
  }

  /// A list may have the same indentation as its key.
  nlohmann::json value_below(std::size_t indent, int depth) {
    skip_empty();
    if (!done() && line().indent == indent && is_item(line().text)) return list(indent, depth + 1);
    return nested(indent + 1, depth);
  }

  nlohmann::json nested(std::size_t least, int depth) {
    skip_empty();
    if (done() || line().indent < least) {
      count_value(number_);
      return nullptr;
    }
    return block(line().indent, depth + 1);
  }

  /// The text of a scalar from here on, including continuation lines: those indented further than
  /// `indent`, or all until a quote or bracket is closed. An empty line represents a newline.
  std::string joined(std::string_view first, std::size_t indent) {
    std::string text(first);
    ScalarEnd end;
    bool escaped = end.take(first);
    advance();
    std::size_t empty = 0;
    while (!done()) {
      if (line().text.empty()) {
        ++empty, advance();
        continue;
      }
      if (!end.open() && line().indent <= indent) break;
      if (!end.open() && !end.is_quoted() && key_end(line().text) != std::string_view::npos)
        refuse(line().number, "a key below a value");
      if (escaped) text.pop_back();
      if (empty > 0)
        text.append(empty, '\n');
      else if (!escaped)
        text += ' ';
      text += line().text;
      escaped = end.take(line().text);
      empty = 0;
      advance();
    }
    return text;
  }

  nlohmann::json scalar(const std::string& text, std::size_t number, int depth) {
    std::string_view rest = text;
    nlohmann::json value = flow(rest, number, depth, false);
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    if (!rest.empty() && !rest.starts_with('#'))
      refuse(number, fmt::format("'{}'", rest.substr(0, 20)));
    return value;
  }

  /// Takes one value from the beginning of `rest`; inside brackets plain words end at punctuation.
  nlohmann::json flow(std::string_view& rest, std::size_t number, int depth, bool inside) {
    count_value(number);
    if (depth > kDeepest) refuse(number, "nesting deeper than 32");
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    if (rest.starts_with('"') || rest.starts_with('\'')) return quoted(rest, number);
    if (rest.starts_with('[') || rest.starts_with('{')) return bracket(rest, number, depth);
    if (!rest.empty() && std::string_view("&*!|>%@`").find(rest.front()) != std::string_view::npos)
      refuse(number, fmt::format("'{}'", rest.substr(0, 20)));
    std::size_t end = rest.size();
    for (std::size_t at = 0; at < rest.size(); ++at) {
      const bool mark =
          inside && (std::string_view(",]}").find(rest[at]) != std::string_view::npos ||
                     (rest[at] == ':' && rest.substr(at + 1).starts_with(' ')));
      const bool comment = rest[at] == '#' && at > 0 && rest[at - 1] == ' ';
      if (!mark && !comment) continue;
      end = at;
      break;
    }
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end);
    while (word.ends_with(' ')) word.remove_suffix(1);
    return plain(word);
  }

  nlohmann::json bracket(std::string_view& rest, std::size_t number, int depth) {
    const bool array = rest.front() == '[';
    const char close = array ? ']' : '}';
    nlohmann::json value = array ? nlohmann::json::array() : nlohmann::json::object();
    const auto skip = [&] {
      while (rest.starts_with(' ') || rest.starts_with('\n')) rest.remove_prefix(1);
      if (rest.empty()) refuse(number, "a bracket that nothing closes");
    };
    rest.remove_prefix(1);
    for (skip(); rest.front() != close; skip()) {
      nlohmann::json one = flow(rest, number, depth + 1, true);
      skip();
      if (array) {
        value.push_back(std::move(one));
      } else {
        if (rest.front() != ':' || !one.is_string() || value.contains(one.get<std::string>()))
          refuse(number, "a mapping in brackets");
        rest.remove_prefix(1);
        skip();
        value[one.get<std::string>()] = flow(rest, number, depth + 1, true);
        skip();
      }
      if (rest.front() == ',')
        rest.remove_prefix(1);
      else if (rest.front() != close)
        refuse(number, fmt::format("'{}'", rest.substr(0, 20)));
    }
    rest.remove_prefix(1);
    return value;
  }

  nlohmann::json quoted(std::string_view& rest, std::size_t number) const {
    const std::size_t end = quoted_end(rest);
    if (end == std::string_view::npos) refuse(number, "a quote that nothing closes");
    const bool escapes = rest.front() == '"';
    const std::string_view inner = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    std::string text;
    for (std::size_t at = 0; at < inner.size(); ++at) {
      if (!escapes && inner[at] == '\'') ++at;  // a quote is written twice
      if (escapes && inner[at] == '\\')
        append_escape(text, inner, at, number);
      else
        text += inner[at];
    }
    return text;
  }

  /// `at` moves from the backslash to the last letter of the escape.
  void append_escape(std::string& to, std::string_view inner, std::size_t& at,
                     std::size_t number) const {
    static constexpr std::string_view kLetters = "0abtnvfre \"/\\_N";
    static constexpr std::string_view kMeanings("\0\a\b\t\n\v\f\r\x1b \"/\\", 13);
    const char letter = inner[++at];
    const std::size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (digits > 0) {
      std::uint32_t code = 0;
      const char* first = inner.data() + at + 1;
      const bool there = at + digits < inner.size();
      const auto read = there ? std::from_chars(first, first + digits, code, 16)
                              : std::from_chars_result{first, std::errc::invalid_argument};
      const bool surrogate = code >= 0xD800 && code < 0xE000;
      if (read.ec != std::errc() || read.ptr != first + digits || code > 0x10FFFF || surrogate)
        refuse(number, "an escape");
      at += digits;
      return append_code_point(to, code);
    }
    const std::size_t which = kLetters.find(letter);
    if (which == std::string_view::npos) refuse(number, fmt::format("'\\{}'", letter));
    if (which < kMeanings.size()) {
      to += kMeanings[which];
      return;
    }
    append_code_point(to, letter == '_' ? 0xA0 : 0x85);
  }

  std::string source_;
  std::string_view rest_;  // text after the current line
  Line line_;
  std::size_t number_ = 0, values_ = 0;
  bool begun_ = false, done_ = false;
};

}  // namespace

nlohmann::json read_yaml(const std::string& text, const std::string& source) {
  if (text.size() > kMostMib << 20)
    throw StorageError(
        fmt::format("'{}' has more than {} MiB", source, kMostMib),
        "a configuration or a list of data has a few hundred kB: is this really one?");
  return YamlReader(text, source).document();
}

}  // namespace choir
