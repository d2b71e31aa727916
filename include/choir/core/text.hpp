#pragma once
// Small pure helpers on strings: lists for messages, splitting, and the nearest legal name for a
// misspelt one.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// Single-character insertions, deletions, substitutions and swaps of neighbours that turn a into b
/// (optimal string alignment distance). O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name closest to `word`, or "" when none is close enough to be a misspelling of it (more than
/// a third of its letters differ). Case and '-' against '_' do not count. The first wins a tie.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// "a,,b" at ',' -> {"a", "", "b"}; "" -> {}.
std::vector<std::string> split(std::string_view text, char separator);
/// Without blanks, tabs and line ends at both sides.
std::string_view trim(std::string_view text);
/// Whether `text` begins with `prefix`, which is then taken off.
bool take_prefix(std::string_view& text, std::string_view prefix);
/// ASCII lower case with '-' turned into '_': how key names are compared for hints.
std::string fold_name(std::string_view name);
/// Indented lines of at most `width` columns, broken at blanks.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent);

/// FNV-1a over `bytes`, continuing from `h`.
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t h = 0xcbf29ce484222325ull);

}  // namespace choir
