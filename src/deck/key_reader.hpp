#pragma once
// Reads the keys of another program's model description. Each key is read by name, so that a key
// nobody reads, which may change the mathematics, is refused and not ignored.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/json_value.hpp"

namespace choir {

class KeyReader {
 public:
  /// `object` must outlive this. `source` is the file; `prefix` precedes the keys in messages.
  KeyReader(const nlohmann::json& object, std::string source, std::string prefix = {});

  /// True if the key is present and not null.
  bool has(const std::string& key) const;
  /// True if the key is present, even if it is null.
  bool knows(const std::string& key) const { return object_.contains(key); }
  /// These return the value. An illegal value becomes a problem, and the default is returned.
  std::int64_t whole(const std::string& key, std::int64_t otherwise, std::int64_t least = 0);
  double real(const std::string& key, double otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// Returns a required number from 1 to 2^30. A missing key is a problem.
  std::int64_t needed(const std::string& key);
  /// Returns nullptr if the key is absent or null.
  const nlohmann::json* value(const std::string& key);

  /// Any other value is a problem, but the key may be absent; `why` says what the value would mean.
  void only(const std::string& key, const nlohmann::json& legal, const std::string& why);
  /// Marks keys that do not affect the mathematics as read.
  void harmless(const std::vector<std::string>& keys);
  void problem(const std::string& key, const std::string& why);

  /// Returns all problems. Keys that nobody read are problems too, unless `allow_unknown`.
  std::vector<std::string> problems(bool allow_unknown) const;
  /// Throws DeckError with all problems, if there are any.
  void finish(bool allow_unknown) const;

 private:
  const nlohmann::json& object_;
  std::string source_, prefix_;
  std::set<std::string> asked_;
  std::vector<std::string> problems_;
};

/// Throws DeckError with the problems of `source`, if there are any.
void refuse_problems(const std::string& source, const std::vector<std::string>& problems);

}  // namespace choir
