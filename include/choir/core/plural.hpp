#pragma once
// Counted nouns in messages: "1 recording", "2 recordings".
#include <concepts>
#include <cstdint>
#include <string>

namespace choir {

constexpr const char* plural(std::int64_t n) {
  return n == 1 ? "" : "s";
}

/// A number with its noun: "1 utterance", "1,308 utterances". Digits are grouped as by
/// format_count().
std::string counted(std::int64_t n, const char* thing);

/// The same for unsigned counts.
template <std::unsigned_integral N>
std::string counted(N n, const char* thing) {
  return counted(static_cast<std::int64_t>(n), thing);
}

}  // namespace choir
