#include "src/deck/name_patterns.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {

// Greedy: after a mismatch, the last '*' takes one more character.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

void require_matches(const std::string& key, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return matches_pattern(pattern, name); }))
      continue;
    std::vector<std::string> nearest = names;
    constexpr std::size_t kShown = 3;
    constexpr std::size_t kCompared = 256;  // a longer pattern is compared only up to here
    const std::string_view front = std::string_view(pattern).substr(0, kCompared);
    const auto farness = [&](const std::string& name) { return edit_distance(front, name); };
    std::stable_sort(nearest.begin(), nearest.end(),
                     [&](const auto& a, const auto& b) { return farness(a) < farness(b); });
    nearest.resize(std::min(kShown, nearest.size()));
    throw DeckError(
        fmt::format("{}: '{}' matches no parameter", key, pattern),
        fmt::format("the nearest are {}; '*' stands for any characters", join(nearest, ", ")));
  }
}

}  // namespace choir
