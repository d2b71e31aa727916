#include "src/core/json_document.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/file_kind.hpp"
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
  if (const auto place = places_.find(path); place != places_.end()) return place->second;
  const int line = line_of(path);
  return line == 0 ? source_ : fmt::format("{}:{}", source_, line);
}

namespace {

constexpr const char* kInclude = "include";

void merge_into(json& target, const json& layer, const std::string& prefix,
                const std::function<bool(const std::string&)>& is_value) {
  for (const auto& [name, value] : layer.items()) {
    const std::string path = prefix.empty() ? name : prefix + "." + name;
    json& here = target[name];
    if (here.is_object() && value.is_object() && !is_value(path))
      merge_into(here, value, path, is_value);
    else
      here = value;
  }
}

}  // namespace

JsonDocument JsonDocument::merged(const std::vector<JsonDocument>& layers,
                                  const std::function<bool(const std::string&)>& is_value) {
  auto root = std::make_shared<json>(json::object());
  JsonDocument result({}, layers.back().source(), {});
  for (const JsonDocument& layer : layers) {
    merge_into(*root, layer.root(), "", is_value);
    for (const auto& [path, line] : layer.lines_) {
      result.lines_[path] = line;
      result.places_[path] = layer.place_of(path);
    }
  }
  root->erase(kInclude);
  result.root_ = std::move(root);
  return result;
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
  if (std::filesystem::is_directory(path, ignored)) {
    const bool run = std::filesystem::exists(path + "/deck.json", ignored);
    const bool model = !run && std::filesystem::exists(path + "/config.json", ignored);
    throw DeckError(fmt::format("'{}' is a {}, not a deck", path,
                                run     ? "run directory"
                                : model ? "folder with a model of transformers"
                                        : "directory"),
                    run     ? fmt::format("its deck is {}/deck.json", path)
                    : model ? fmt::format("import it: choir import {} --out runs/imported", path)
                            : "name a file, as inputs/debug.json");
  }
  for (const char* ending : {".py", ".yaml", ".yml", ".toml"})
    if (path.ends_with(ending) && !std::filesystem::exists(path, ignored)) {
      const std::string deck = deck_like(path);
      throw DeckError(fmt::format("there is no file '{}', and a deck of choir is JSON", path),
                      deck.empty() ? fmt::format("the decks that come with choir are in {}/",
                                                 own_decks_folder())
                                   : fmt::format("the deck of that name is {}", deck));
    }
  auto [text, fault] = read_capped_file(path, kMostMiB, Pipes::read);
  constexpr std::string_view kUnreadable = "cannot be read: ";
  if (fault.starts_with(kUnreadable))
    throw DeckError(
        fmt::format("cannot read the deck '{}': {}", path, fault.substr(kUnreadable.size())),
        advice_on_path(
            path, fmt::format("the decks that come with choir are in {}/", own_decks_folder())));
  if (!fault.empty()) {
    std::string start(kFileKindBytes, 0);
    std::ifstream file(path, std::ios::binary);
    file.read(start.data(), static_cast<std::streamsize>(start.size()));
    start.resize(static_cast<std::size_t>(file.gcount()));
    if (const FileKind kind = file_kind(start); kind != FileKind::unknown)
      throw DeckError(fmt::format("'{}' is {}, and a deck is JSON", path, describe(kind)),
                      "weights of other programs: choir import " + path +
                          "; data are named in a deck (data.train)");
    throw DeckError(fmt::format("the deck '{}' {}", path, fault), "is it a file of data?");
  }
  if (trim(text).empty())
    throw DeckError("the deck '" + path + "' is empty", "copy one from inputs/");
  return text;
}

namespace {

/// The only member of the text of several decks: no key has this name.
constexpr const char* kDecks = "a deck and those that it includes";

std::vector<std::string> included_by(const JsonDocument& deck) {
  std::vector<std::string> paths;
  if (!deck.root().is_object() || !deck.root().contains(kInclude)) return paths;
  const json& given = deck.root()[kInclude];
  for (const json& one : given.is_array() ? given : json::array({given})) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      throw DeckError(fmt::format("{}: include is neither the path of a deck nor a list of paths",
                                  deck.place_of(kInclude)),
                      "write \"include\": \"base.json\", relative to the folder of this deck");
    paths.push_back(one.get<std::string>());
  }
  return paths;
}

/// Appends the decks that `path` includes, in their order, and then itself. `open` holds the decks
/// that are being included, from the outermost one.
void gather_decks(const std::string& path, std::vector<std::filesystem::path>& open, json& decks) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path canonical = fs::weakly_canonical(path, unknown);
  if (std::find(open.begin(), open.end(), canonical) != open.end()) {
    std::string chain;
    for (const fs::path& one : open) chain += one.string() + " includes ";
    throw DeckError(fmt::format("a deck includes itself: {}{}", chain, canonical.string()),
                    "take the include out of one of these decks");
  }
  const std::string text = read_deck_text(path);
  open.push_back(canonical);
  const JsonDocument deck = parse_json(text, path);
  for (const std::string& each : included_by(deck)) {
    const fs::path file = fs::path(path).parent_path() / each;
    if (!fs::exists(file, unknown))
      throw DeckError(fmt::format("{}: include \"{}\": there is no '{}'", deck.place_of(kInclude),
                                  each, file.string()),
                      "paths of include are relative to the folder of the including deck");
    gather_decks(file.lexically_normal().string(), open, decks);
  }
  open.pop_back();
  decks.push_back({{"source", path}, {"text", text}});
}

}  // namespace

std::string read_deck_with_includes(const std::string& path) {
  const std::string text = read_deck_text(path);
  if (text.find(kInclude) == std::string::npos) return text;
  const JsonDocument deck = parse_json(text, path);
  if (!deck.root().is_object() || !deck.root().contains(kInclude)) return text;
  std::vector<std::filesystem::path> open;
  json decks = json::array();
  gather_decks(path, open, decks);
  return dumped(json{{kDecks, std::move(decks)}});
}

JsonDocument parse_deck_text(std::string_view text, const std::string& source,
                             const std::function<bool(const std::string&)>& is_value) {
  JsonDocument document = parse_json(text, source);
  if (!document.root().is_object() || !document.root().contains(kDecks)) return document;
  std::vector<JsonDocument> layers;
  for (const json& deck : document.root()[kDecks]) {
    layers.push_back(
        parse_json(deck["text"].get<std::string>(), deck["source"].get<std::string>()));
    if (!layers.back().root().is_object())
      throw DeckError(layers.back().source() + ": a deck is an object, { \"model\": { ... }, ... }",
                      "see the decks in inputs/");
  }
  return JsonDocument::merged(layers, is_value);
}

}  // namespace choir
