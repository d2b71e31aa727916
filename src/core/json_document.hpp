#pragma once
// Strict reading of JSON decks. Comments (// and /* */) are accepted beyond RFC 8259. Malformed
// text, duplicate keys, text after the document and nesting deeper than 64 are refused with file,
// line, column and the text of the line. The document remembers the line of every value for later
// messages.

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

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

 private:
  std::shared_ptr<const nlohmann::json> root_;
  std::string source_;
  std::map<std::string, int> lines_;
};

/// `source` names the text in messages. Throws DeckError. Local.
JsonDocument parse_json(std::string_view text, const std::string& source);

/// Reads the whole file. Throws DeckError if it does not exist, is a directory or empty, or cannot
/// be read. Local.
std::string read_deck_text(const std::string& path);

}  // namespace choir
