#include "src/core/json_document.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_events.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using nlohmann::json;

[[noreturn]] void fail(std::string_view text, const std::string& source, std::size_t offset,
                       const std::string& what, const std::string& hint) {
  const JsonPosition at = json_position(text, offset);
  // A caret below the position; the line is shortened from the left when it is very long.
  constexpr std::size_t kShown = 90;
  const std::size_t skip = at.column > kShown ? at.column - kShown / 2 : 0;
  const std::string caret(at.column - 1 - std::min(skip, at.column - 1), ' ');
  std::string line(at.text.substr(std::min(skip, at.text.size()), kShown));
  std::replace(line.begin(), line.end(), '\t', ' ');
  throw DeckError(
      fmt::format("{}:{}:{}: {}\n  | {}\n  | {}^", source, at.line, at.column, what, line, caret),
      hint);
}

/// Notes the line of each value.
class LineNoter : public JsonEvents {
 public:
  LineNoter(std::string_view all, const std::size_t* bytes)
      : JsonEvents{all, bytes}, most_bytes_(std::max(kLeastBytes, 2 * all.size())) {}

  bool null() { return put(); }
  bool boolean(bool) { return put(); }
  bool number_integer(number_integer_t) { return put(); }
  bool number_unsigned(number_unsigned_t) { return put(); }
  bool number_float(number_float_t, const string_t&) { return put(); }
  bool string(string_t&) { return put(); }
  bool start_object(std::size_t) { return open(false); }
  bool start_array(std::size_t) { return open(true); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    levels_.back().key = name;
    if (const std::string path = next_path(); path.size() > kLongestPath)
      throw JsonProblem{string_start(text, offset()),
                        fmt::format("the names of a key and of what it is in have {} bytes "
                                    "together",
                                    path.size()),
                        fmt::format("at most {}", kLongestPath), false};
    return true;
  }

  std::map<std::string, int> lines;

 private:
  // A text may consist only of keys and lists, and the memory for their paths must not grow with
  // the product of both. Lines of values beyond these bounds are not stored.
  static constexpr std::size_t kLongestPath = 4096;
  static constexpr std::size_t kLeastBytes = std::size_t{32} << 20, kNode = 96;

  struct Level {
    std::string path;
    bool list = false;
    std::size_t number = 0;  ///< values read until now
    std::string key;
  };

  /// The line of a byte. The bytes ascend, so the text is scanned once.
  int line_at(std::size_t byte) {
    line_ += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text.begin() + static_cast<std::ptrdiff_t>(byte), '\n'));
    counted_ = byte;
    return line_;
  }
  std::string next_path() const {
    if (levels_.empty()) return {};
    const Level& level = levels_.back();
    if (level.list) return fmt::format("{}[{}]", level.path, level.number);
    return level.path.empty() ? level.key : level.path + "." + level.key;
  }
  bool put() {
    // The library reports a number after it has read the next character: step back to the last
    // digit.
    std::size_t end = offset();
    while (end > 1 && std::isspace(static_cast<unsigned char>(text[end - 1]))) --end;
    const int line = line_at(std::max(counted_, end == 0 ? 0 : end - 1));
    std::string path = next_path();
    if (const std::size_t bytes = path.size() + kNode; bytes_ + bytes <= most_bytes_) {
      bytes_ += bytes;
      lines[std::move(path)] = line;
    }
    if (!levels_.empty()) ++levels_.back().number;
    return true;
  }
  bool open(bool list) {
    std::string path = next_path();
    put();
    levels_.push_back({std::move(path), list, 0, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::vector<Level> levels_;
  std::size_t counted_ = 0, bytes_ = 0, most_bytes_;
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
  try {
    const JsonLimits limits{.keys = kAnyNumberOfKeys, .comments = true};
    auto root = std::make_shared<const json>(read_json(text, source, limits));
    std::size_t bytes = 0;
    LineNoter noter(text, &bytes);
    send_json_events(text, bytes, noter, true);
    return {std::move(root), source, std::move(noter.lines)};
  } catch (const JsonError& error) {
    const JsonFault& fault = error.fault();
    fail(text, source, fault.offset, (fault.malformed ? "not valid JSON: " : "") + fault.cause,
         error.hint());
  } catch (const JsonProblem& problem) {
    fail(text, source, problem.offset, problem.message(), problem.hint);
  }
}

std::string read_deck_text(const std::string& path) {
  constexpr std::size_t kMostMiB = 16;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw DeckError("'" + path + "' is a directory, not a deck",
                    "name a file, as inputs/debug.json");
  auto [text, fault] = read_capped_file(path, kMostMiB, Pipes::read);
  constexpr std::string_view kUnreadable = "cannot be read: ";
  if (fault.starts_with(kUnreadable))
    throw DeckError(
        fmt::format("cannot read the deck '{}': {}", path, fault.substr(kUnreadable.size())),
        advice_on_path(path, "the decks that come with choir are in inputs/"));
  if (!fault.empty())
    throw DeckError(fmt::format("the deck '{}' {}", path, fault), "is it a file of data?");
  if (trim(text).empty())
    throw DeckError("the deck '" + path + "' is empty", "copy one from inputs/");
  return text;
}

}  // namespace choir
