#pragma once
// Strict reading of JSON decks. Comments (// and /* */) are accepted beyond RFC 8259. Malformed
// text, duplicate keys, text after the document and nesting deeper than 64 are refused with file,
// line, column and the text of the line. The document remembers the line of every value for later
// messages. A deck may include others, which it then changes.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

class JsonDocument {
 public:
  JsonDocument(std::shared_ptr<const nlohmann::json> root, std::string source,
               std::map<std::string, int> lines);
  const nlohmann::json& root() const { return *root_; }
  /// The path of the file as it was given.
  const std::string& source() const { return source_; }
  /// Line (from 1) of the value at a path such as "train.max_steps" or "data.train[1]"; 0 for an
  /// unknown path.
  int line_of(const std::string& path) const;
  /// "inputs/a.json:12", or the source alone for an unknown path.
  std::string place_of(const std::string& path) const;

  /// One document of several, without "include": objects are merged, and any other value, or an
  /// object at a path for which `is_value` is true, replaces that of the documents before. Every
  /// place is that of the last document that has the path. The source is that of the last document.
  static JsonDocument merged(const std::vector<JsonDocument>& layers,
                             const std::function<bool(const std::string& path)>& is_value);

 private:
  std::shared_ptr<const nlohmann::json> root_;
  std::string source_;
  std::map<std::string, int> lines_;
  std::map<std::string, std::string> places_{};  // of merged documents
};

/// `source` names the text in messages. Throws DeckError. Local.
JsonDocument parse_json(std::string_view text, const std::string& source);

/// Reads the whole file. Throws DeckError if it does not exist, is a directory or empty, or cannot
/// be read. Local.
std::string read_deck_text(const std::string& path);

/// The text of a deck and of all decks that it includes, for parse_deck_text(), so that one rank
/// reads and the others receive one text; the unchanged text of a deck that includes none.
/// "include" is a path or a list of paths, relative to the folder of the including deck. Throws
/// DeckError as read_deck_text(), for JSON that is malformed, and for a deck that includes itself.
/// Local.
std::string read_deck_with_includes(const std::string& path);

/// Parses what read_deck_with_includes() returned: the included decks in their order, and then the
/// deck itself, whose values replace theirs. `is_value` as in JsonDocument::merged(). Pure.
JsonDocument parse_deck_text(std::string_view text, const std::string& source,
                             const std::function<bool(const std::string& path)>& is_value);

}  // namespace choir
