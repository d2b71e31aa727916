#pragma once
// The keys of a description of a model by another program. Each is asked for by name, so that what
// nobody asks for, and may change the mathematics, is refused and not ignored.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/json_value.hpp"

namespace choir {

class KeyReader {
 public:
  /// `object` must outlive this. `source` is the file; `prefix` stands before keys in messages.
  KeyReader(const nlohmann::json& object, std::string source, std::string prefix = {});

  /// Present and not null.
  bool has(const std::string& key) const;
  /// Present, perhaps null.
  bool knows(const std::string& key) const { return object_.contains(key); }
  /// What is wrong with a value becomes a problem, and the default is returned.
  std::int64_t whole(const std::string& key, std::int64_t otherwise);
  double real(const std::string& key, double otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// A problem when it is absent; at least 1 and at most 2^30.
  std::int64_t needed(const std::string& key);
  /// nullptr when absent or null.
  const nlohmann::json* value(const std::string& key);

  /// Anything but this value (or nothing) is a problem; `why` says what it would mean.
  void only(const std::string& key, const nlohmann::json& legal, const std::string& why);
  /// Says nothing about the mathematics.
  void harmless(const std::vector<std::string>& keys);
  void problem(const std::string& key, const std::string& why);

  /// Keys that nobody asked for are problems as well, unless `allow_unknown`.
  std::vector<std::string> problems(bool allow_unknown) const;
  /// DeckError that lists them all, if there are any.
  void finish(bool allow_unknown) const;

 private:
  const nlohmann::json& object_;
  std::string source_, prefix_;
  std::set<std::string> asked_;
  std::vector<std::string> problems_;
};

/// DeckError that lists the problems of `source`, if there are any.
void refuse_problems(const std::string& source, const std::vector<std::string>& problems);

}  // namespace choir
