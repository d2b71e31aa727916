#pragma once
// The alphabet in which GPT-2 and its successors write bytes, so that every entry of a vocabulary
// is a string without blanks. Printable bytes of Latin-1 are written as themselves; the other
// bytes, in order, as U+0100 and the following characters (a blank is U+0120, a line end U+010A).
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace choir {

/// The character of each byte.
const std::array<char32_t, 256>& byte_alphabet();
/// The bytes in the order of their characters, which is the order of ids in a new vocabulary.
const std::array<unsigned char, 256>& bytes_by_character();

std::string bytes_as_characters(std::string_view bytes);
/// std::nullopt if a character represents no byte. `text` must be UTF-8.
std::optional<std::string> characters_as_bytes(std::string_view text);

}  // namespace choir
