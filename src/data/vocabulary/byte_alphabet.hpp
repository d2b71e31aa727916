#pragma once
// How GPT-2 and its heirs write bytes as characters, so that every entry of a vocabulary is a
// string without blanks: printable bytes of Latin-1 stand for themselves, the others, in order, for
// U+0100 and what follows (a blank is U+0120, a line end U+010A).
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace choir {

/// The character that stands for each byte.
const std::array<char32_t, 256>& byte_alphabet();
/// The bytes in the order of their characters, which is the order of ids in a new vocabulary.
const std::array<unsigned char, 256>& bytes_by_character();

std::string bytes_as_characters(std::string_view bytes);
/// Nothing when a character stands for no byte. `text` must be UTF-8.
std::optional<std::string> characters_as_bytes(std::string_view text);

}  // namespace choir
