#pragma once
// Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace choir {

/// One decoded code point. `length` is 0 if the bytes at the front are not UTF-8 or (`incomplete`)
/// if the text ends within the sequence.
struct CodePoint {
  char32_t value = 0;
  int length = 0;
  bool incomplete = false;
};
/// The code point at the front of `text`, which must not be empty.
CodePoint first_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// The name of a code point in messages: "'é' (U+00E9)", "U+000A".
std::string name_code_point(char32_t code_point);

/// Throws the DataError for bytes that are not UTF-8.
[[noreturn]] void refuse_utf8(std::string_view source, std::int64_t byte);

}  // namespace choir
