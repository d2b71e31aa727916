#include "src/core/json_value.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/json_events.hpp"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace choir {

using nlohmann::json;
using nlohmann::ordered_json;

std::string dumped(const json& value, int indent) {
  return value.dump(indent);
}
std::string dumped(const ordered_json& value, int indent) {
  return value.dump(indent);
}

std::string dumped_safely(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}
std::string dumped_safely(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

json parsed_json(std::string_view text) {
  return json::parse(text);
}
ordered_json parsed_ordered_json(std::string_view text) {
  return ordered_json::parse(text);
}
ordered_json parsed_commented_json(std::string_view text) {
  return ordered_json::parse(text, nullptr, true, true);
}
json json_unless_broken(std::string_view text) {
  return json::parse(text, nullptr, false);
}
ordered_json ordered_json_unless_broken(std::string_view text) {
  return ordered_json::parse(text, nullptr, false);
}

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Bytes that glibc allocates for these parts of a document.
constexpr std::size_t kText = 48, kObject = 64, kList = 32, kMember = 96, kBlock = 16;
constexpr std::size_t kInPlace = 15;  ///< characters that a string holds without an allocation

std::size_t characters_beside(const std::string& text) {
  return text.size() > kInPlace ? text.size() + 1 + kBlock : 0;
}

/// Finds the first two occurrences of a key in the object with which a text begins.
class KeyFinder : public JsonEvents {
 public:
  struct Found {};

  KeyFinder(std::string_view all, const std::size_t* bytes, const std::string& name)
      : JsonEvents{all, bytes}, name_(name) {}
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(number_integer_t) { return true; }
  bool number_unsigned(number_unsigned_t) { return true; }
  bool number_float(number_float_t, const string_t&) { return true; }
  bool string(string_t&) { return true; }
  bool start_object(std::size_t) { return ++level_ > 0; }
  bool start_array(std::size_t) { return ++level_ > 0; }
  bool end_object() { return --level_ >= 0; }
  bool end_array() { return --level_ >= 0; }
  bool key(const string_t& key) {
    if (level_ != 1 || key != name_) return true;
    places_[number_++] = string_start(text, offset());
    return number_ < places_.size();
  }
  const std::array<std::size_t, 2>& places() const { return places_; }

 private:
  const std::string& name_;
  std::array<std::size_t, 2> places_{};
  std::size_t number_ = 0;
  int level_ = 0;
};

/// Builds the document.
template <class Json>
class TreeBuilder : public JsonEvents {
 public:
  TreeBuilder(std::string_view all, const std::size_t* bytes, const JsonLimits& limits,
              JsonTables* tables)
      : JsonEvents{all, bytes},
        limits_(limits),
        tables_(tables),
        most_bytes_(most_json_bytes(all.size())) {
    if (tables != nullptr) paths_ = tables->paths();
  }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t& digits) {
    if (limits_.exact_integers && digits.find_first_of(".eE") == string_t::npos)
      // The character behind the number was read, too.
      fail(offset() - std::min(offset(), digits.size() + 1),
           fmt::format("the integer {} has more than 64 bits", digits),
           "write it as a string, in quotation marks");
    return put(value);
  }
  bool string(const string_t& value) {
    spend(kText + characters_beside(value));
    return put(value);  // a copy: the lexer's string has room for twice as many characters
  }
  bool start_object(std::size_t) { return open(Json::object(), kObject); }
  bool start_array(std::size_t) { return open(Json::array(), kList); }
  bool end_array() { return close(); }
  bool end_object() {
    if constexpr (kOrdered) require_distinct(levels_.back());
    return close();
  }

  bool key(const string_t& name) {
    Level& level = levels_.back();
    if (!paths_.empty()) level.key = name;
    if (level.table != kNoTable) return true;
    auto& object = level.node->template get_ref<typename Json::object_t&>();
    if (object.size() >= limits_.keys)
      fail(string_start(text, offset()),
           fmt::format("more than {} keys in one object", limits_.keys));
    spend(characters_beside(name));
    if constexpr (kOrdered) {
      grow(object);
      object.emplace_back(name, nullptr);
      level.slot = &object.back().second;
    } else {
      spend(kMember);
      const auto [member, fresh] = object.emplace(name, nullptr);
      if (!fresh) fail_twice(level, name);
      level.slot = &member->second;
    }
    return true;
  }

  Json root;

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, ordered_json>;

  static constexpr std::size_t kNoTable = ~std::size_t{0};

  struct Level {
    Json* node;
    std::size_t start;     ///< offset of its bracket
    Json* slot = nullptr;  ///< the value of the last key
    std::string key;       ///< the last key, if there may be tables
    std::size_t table = kNoTable;
    std::size_t bytes = 0;  ///< all values before the last member of the table
  };

  [[noreturn]] static void fail(std::size_t offset, std::string cause, std::string hint = {}) {
    throw JsonProblem{offset, std::move(cause), std::move(hint), false};
  }

  void require_room(std::size_t bytes) const {
    if (bytes_ + bytes > most_bytes_)
      fail(offset(), fmt::format("its values would need more than {} MiB of memory, and the text "
                                 "has {} bytes",
                                 most_bytes_ >> 20, text.size()));
  }
  void spend(std::size_t bytes) {
    require_room(bytes);
    bytes_ += bytes;
  }
  /// Called before an element is appended. While a list moves to a larger block, both blocks are
  /// allocated.
  template <class List>
  void grow(const List& list) {
    if (list.size() < list.capacity()) return;
    const std::size_t now = list.capacity(), then = std::max<std::size_t>(1, 2 * now);
    require_room(then * sizeof(list[0]) + kBlock);
    bytes_ += (then - now) * sizeof(list[0]);
  }

  template <class Value>
  Json* attach(Value&& value) {
    if (levels_.empty()) return &(root = std::forward<Value>(value));
    Level& level = levels_.back();
    if (level.table != kNoTable) return &(member_ = std::forward<Value>(value));
    if (!level.node->is_array()) return &(*level.slot = std::forward<Value>(value));
    auto& list = level.node->template get_ref<typename Json::array_t&>();
    grow(list);
    list.emplace_back(std::forward<Value>(value));
    return &list.back();
  }
  template <class Value>
  bool put(Value&& value) {
    attach(std::forward<Value>(value));
    if (!levels_.empty()) complete_member();
    return true;
  }
  /// Called after each value: the member of a table is passed on.
  void complete_member() {
    Level& level = levels_.back();
    if (level.table == kNoTable) return;
    if constexpr (!kOrdered) tables_->add(level.table, level.key, member_);
    member_ = nullptr;
    bytes_ = level.bytes;
  }
  std::size_t table_here() const {
    if (paths_.empty() || levels_.empty()) return kNoTable;
    std::string path;
    for (const Level& level : levels_) path += (path.empty() ? "" : ".") + level.key;
    const auto found = std::find(paths_.begin(), paths_.end(), path);
    return found == paths_.end() ? kNoTable : static_cast<std::size_t>(found - paths_.begin());
  }
  bool open(Json&& empty, std::size_t bytes) {
    const std::size_t start = offset() - std::min<std::size_t>(offset(), 1);
    if (levels_.size() >= limits_.depth)
      fail(start, fmt::format("nested deeper than {} levels", limits_.depth));
    spend(bytes);
    const std::size_t table = table_here();
    Json* node = attach(std::move(empty));
    levels_.push_back({node, start, nullptr, {}, table, bytes_});
    return true;
  }
  bool close() {
    if (const Level& level = levels_.back(); level.table != kNoTable)
      if (const auto twice = tables_->end(level.table)) fail_twice(level, *twice);
    levels_.pop_back();
    if (!levels_.empty()) complete_member();
    return true;
  }

  /// The keys of an ordered object are compared once, when it is complete.
  void require_distinct(const Level& level) {
    const auto& object = level.node->template get_ref<const typename Json::object_t&>();
    spend(object.size() * sizeof(void*));
    std::vector<const std::string*> keys;
    keys.reserve(object.size());
    for (const auto& member : object) keys.push_back(&member.first);
    std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
    const auto twice = std::adjacent_find(keys.begin(), keys.end(),
                                          [](const auto* a, const auto* b) { return *a == *b; });
    if (twice != keys.end()) fail_twice(level, **twice);
    bytes_ -= object.size() * sizeof(void*);
  }

  [[noreturn]] void fail_twice(const Level& level, const std::string& name) const {
    const std::string_view object = text.substr(level.start);
    std::size_t bytes = 0;
    KeyFinder finder(object, &bytes, name);
    send_json_events(object, bytes, finder, limits_.comments);
    const auto [first, second] = finder.places();
    const JsonPosition at = json_position(text, level.start + first);
    const JsonPosition here = json_position(text, level.start + second);
    const std::string column = fmt::format("column {}", at.column);
    fail(level.start + second,
         fmt::format("key '{}' is given twice (first {})", path_of(level, name),
                     at.line == here.line ? "in " + column
                                          : fmt::format("on line {}, {}", at.line, column)),
         "remove one of them");
  }

  /// The names of the keys that lead to a key of the innermost object, joined by dots.
  std::string path_of(const Level& level, const std::string& name) const {
    std::string path;
    for (std::size_t i = 0; i + 1 < levels_.size() && levels_[i].node != level.node; ++i) {
      const Json *parent = levels_[i].node, *child = levels_[i + 1].node;
      if (parent->is_array()) {
        path += fmt::format("[{}]", parent->size() - 1);
      } else {
        for (const auto& member : parent->template get_ref<const typename Json::object_t&>())
          if (&member.second == child) path += (path.empty() ? "" : ".") + member.first;
      }
    }
    path += (path.empty() ? "" : ".") + name;
    const std::string shown = dumped_safely(json(path.substr(0, 200)));  // escapes controls
    return shown.substr(1, shown.size() - 2);
  }

  const JsonLimits& limits_;
  JsonTables* tables_;
  std::vector<std::string> paths_;
  Json member_;  ///< the member of a table that is being read
  std::size_t most_bytes_, bytes_ = 0;
  std::vector<Level> levels_;
};

template <class Json>
Json read(std::string_view text, const std::string& source, bool is_line, const JsonLimits& limits,
          JsonTables* tables = nullptr) {
  try {
    std::size_t bytes = 0;
    TreeBuilder<Json> builder(text, &bytes, limits, tables);
    send_json_events(text, bytes, builder, limits.comments);
    return std::move(builder.root);
  } catch (const JsonProblem& problem) {
    const JsonPosition at = json_position(text, problem.offset);
    const std::string place = is_line ? fmt::format("{}:{}", source, at.column)
                                      : fmt::format("{}:{}:{}", source, at.line, at.column);
    throw JsonError(fmt::format("{}: {}", place, problem.message()), problem.hint,
                    {problem.cause, problem.malformed, problem.offset, at.line, at.column});
  }
}

/// Describes a token that the library does not expect at this position.
std::string unexpected(std::string_view text, std::size_t offset, std::string_view message) {
  if (offset >= text.size()) return "the text ends too early";
  const auto says = [&](std::string_view words) { return message.find(words) != message.npos; };
  if (says("unexpected string")) return "unexpected text in quotes";
  if (says("unexpected number")) return "unexpected number";
  const auto byte = static_cast<unsigned char>(text[offset]);
  return byte > ' ' && byte < 127 ? fmt::format("unexpected '{}'", text[offset])
                                  : fmt::format("unexpected byte {}", byte);
}

/// True for numbers that Python writes although JSON has none of them.
bool is_number_of_python(std::string_view text, std::size_t offset) {
  const std::string_view rest = text.substr(std::min(offset, text.size()));
  return rest.starts_with("NaN") || rest.starts_with("Infinity") || rest.starts_with("-Infinity");
}

bool is_utf16(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
         (text.size() > 1 && (text[0] == '\0') != (text[1] == '\0'));
}

/// True if something that is no digit stands directly behind or before those of a number: "1_000",
/// "1,000", "16k", "0x10", "+2", ".5".
bool is_number_in_another_form(std::string_view text, std::size_t offset) {
  const auto is_digit = [&](std::size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  const bool separated = offset > 1 && text[offset - 1] == ',' && is_digit(offset - 2);
  return (offset > 0 && is_digit(offset - 1)) || (is_digit(offset) && separated) ||
         ((text[offset] == '+' || text[offset] == '.') && is_digit(offset + 1));
}

/// The library's message is only searched for words that distinguish its cases.
std::string syntax_fault(std::string_view text, std::size_t offset, std::string_view message) {
  message = message.substr(0, message.find("; last read"));
  const auto says = [&](std::string_view words) { return message.find(words) != message.npos; };
  if (is_utf16(text)) return "the text is UTF-16, and JSON is UTF-8";
  if (is_number_of_python(text, offset)) return "NaN and Infinity are no numbers of JSON";
  if (says("missing closing quote")) return "a text has no closing quote";
  if (says("control character"))
    return "a control character stands in a text; write it as \\n, \\t or \\u00XX";
  if (says("ill-formed UTF-8")) return "a text contains bytes that are not UTF-8";
  if (says("surrogate")) return "half of a surrogate pair (\\uD800 to \\uDFFF) stands alone";
  if (says("'\\u' must")) return "\\u is not followed by four hexadecimal digits";
  if (says("after backslash")) return "a backslash is followed by an unknown character";
  if (says("invalid number")) return "a number is malformed";
  if (says("invalid comment")) return "a comment is malformed";
  if (says("invalid BOM")) return "the mark at its beginning is not that of UTF-8";
  const std::string found = says("invalid literal") && offset < text.size()
                                ? "an unknown word or character"
                                : unexpected(text, offset, message);
  if (says("; expected end of input")) return "the document is followed by more text";
  if (says("object key")) return found + " where a key in double quotes is required";
  if (says("object separator")) return found + " where ':' is required";
  if (says("parsing object")) return found + " where ',' or '}' is required";
  if (says("parsing array")) return found + " where ',' or ']' is required";
  return found;
}

std::string syntax_hint(std::string_view text, std::size_t offset) {
  std::string_view before = text.substr(0, std::min(offset, text.size()));
  while (!before.empty() && std::string_view(" \t\r\n").find(before.back()) != before.npos)
    before.remove_suffix(1);
  if (is_utf16(text)) return "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW";
  if (offset >= text.size()) return "is a closing bracket or quote missing?";
  if (is_number_of_python(text, offset))
    return "Python writes them for missing values: write null instead, or leave the key out";
  const char at = text[offset];
  if ((at == '}' || at == ']') && before.ends_with(','))
    return "remove the comma before the closing bracket";
  if (at == '#') return "comments begin with //";
  if (text.substr(offset).starts_with("None")) return "write null instead, or leave the key out";
  if (is_number_in_another_form(text, offset))
    return "a number is written in digits, without separators and units: 1000, 0.5 or 1e-3";
  if (at == '"' && !before.empty()) return "is a comma missing before this?";
  return "keys and texts stand in double quotes; true, false and null are lower case";
}

}  // namespace

std::size_t most_json_bytes(std::size_t text_bytes) {
  constexpr std::size_t kLeast = std::size_t{16} << 20, kTimes = 8;
  return std::max(kLeast, kTimes * text_bytes);
}

JsonPosition json_position(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const std::size_t last_end = before.rfind('\n');
  const std::size_t start = last_end == before.npos ? 0 : last_end + 1;
  JsonPosition at;
  at.line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  at.column = offset - start + 1;
  at.text = text.substr(start, text.find('\n', start) - start);
  return at;
}

JsonProblem json_problem(std::string_view text, std::size_t position,
                         const json::exception& error) {
  const std::size_t offset = position == 0 ? 0 : position - 1;
  constexpr int kNumberOverflow = 406;
  if (error.id == kNumberOverflow) return {offset, "a number is too large", "", true};
  return {offset, syntax_fault(text, offset, error.what()), syntax_hint(text, offset), true};
}

std::size_t string_start(std::string_view text, std::size_t end) {
  // A quote is escaped if an odd number of backslashes precedes it.
  for (std::size_t at = end - std::min<std::size_t>(end, 1); at > 0;) {
    if (text[--at] != '"') continue;
    std::size_t slashes = 0;
    while (slashes < at && text[at - 1 - slashes] == '\\') ++slashes;
    if (slashes % 2 == 0) return at;
  }
  return 0;
}

json read_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  return read<json>(text, source, false, limits);
}
ordered_json read_ordered_json(std::string_view text, const std::string& source,
                               const JsonLimits& limits) {
  return read<ordered_json>(text, source, false, limits);
}
json read_json_tables(std::string_view text, const std::string& source, const JsonLimits& limits,
                      JsonTables& tables) {
  return read<json>(text, source, false, limits, &tables);
}
json read_json_line(std::string_view line, const std::string& place, const JsonLimits& limits) {
  return read<json>(line, place, true, limits);
}
ordered_json read_ordered_json_line(std::string_view line, const std::string& place,
                                    const JsonLimits& limits) {
  return read<ordered_json>(line, place, true, limits);
}

}  // namespace choir
