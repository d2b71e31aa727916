#pragma once
// Patterns over the names of parameters: '*' stands for any characters, '?' for one. Pure.
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// The whole name.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// Whether one of the patterns matches.
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);

/// DeckError for a pattern that matches none of the names, with the nearest of them. `key`: whose
/// patterns these are.
void require_matches(const std::string& key, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names);

}  // namespace choir
