#pragma once
// UTF-8 checks of names. File systems accept any bytes, but decks and metrics hold text.
#include <string>

namespace choir {

/// True if the bytes are UTF-8, as a JSON document requires.
bool is_utf8(const std::string& bytes);
/// The bytes for a message, with U+FFFD for every byte that is not UTF-8.
std::string shown_as_text(const std::string& bytes);

}  // namespace choir
