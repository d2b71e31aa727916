#pragma once
// Pure functions on strings: lists for messages, splitting, UTF-8, and the nearest legal name for a
// misspelt one. Names of files may contain any bytes, but decks and metrics hold UTF-8 text.

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// Single-character insertions, deletions, substitutions and swaps of neighbours that turn a into b
/// (optimal string alignment distance). O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name closest to `word`, or "" if more than a third of the letters of every name differ. Case
/// is ignored, '-' equals '_', and the first name wins a tie.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// "a,,b" at ',' -> {"a", "", "b"}; "" -> {}.
std::vector<std::string> split(std::string_view text, char separator);
/// The text without blanks, tabs and line ends at both sides.
std::string_view trim(std::string_view text);
/// Removes `prefix` from the beginning of `text`. Returns true if it was there.
bool take_prefix(std::string_view& text, std::string_view prefix);
/// ASCII lower case with '-' turned into '_': the form in which key names are compared for hints.
std::string fold_name(std::string_view name);
/// Indented lines of at most `width` columns, broken at blanks.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent);

/// Writes as much of the text as fits, and a terminating zero. Allocates nothing. fmt's formatting
/// is compiled in one source, not in every source that fills an array.
std::string_view print_into(std::span<char> to, fmt::string_view format, fmt::format_args args);
template <std::size_t N, class... Args>
std::string_view print_into(char (&to)[N], fmt::format_string<Args...> format, Args&&... args) {
  return print_into(std::span<char>(to), format, fmt::make_format_args(args...));
}

/// FNV-1a over `bytes`, continuing from `h`.
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t h = 0xcbf29ce484222325ull);

/// True if the bytes are UTF-8, as a JSON document requires.
bool is_utf8(const std::string& bytes);
/// The bytes for a message, with U+FFFD for every byte that is not UTF-8.
std::string shown_as_text(const std::string& bytes);

/// "true" or "false" for a word that means it in other programs, "yes", "off", "1"; "" for others.
std::string boolean_meant_by(std::string_view word);

/// The number that a text in another form means: "1000" for "1_000", "1,000" and "+1000", 0.5 for
/// "0,5" and ".5"; for a unit, "16k", both numbers that it may mean. "" for any other text, and for
/// a fraction if `integer`.
std::string number_meant_by(std::string text, bool integer);

}  // namespace choir
