#pragma once
// Patterns over the names of parameters: '*' matches any characters, '?' matches one. Pure.
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// True if the pattern matches the whole name.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// True if one of the patterns matches.
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);

/// Throws DeckError if a pattern matches none of the names; the message lists the nearest names.
/// `key` is the key that has the patterns.
void require_matches(const std::string& key, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names);

}  // namespace choir
