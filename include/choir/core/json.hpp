#pragma once
// Strict reading of JSON. Accepted beyond RFC 8259: // and /* */ comments. Refused, with file,
// line, column and the text of the line: everything malformed, duplicate keys, text after the
// document, nesting deeper than 64. The document remembers the line of every value, for later
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
  /// The file it was read from, as given.
  const std::string& source() const { return source_; }
  /// Line (from 1) of the value at a path such as "train.max_steps" or "data.train[1]"; 0: no such
  /// path.
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

/// The whole file. Throws DeckError when it is missing, a directory, unreadable or empty. Local.
std::string read_deck_text(const std::string& path);

}  // namespace choir
