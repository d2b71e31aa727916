#pragma once
// Names come from file systems, which take any bytes; what is written into decks and metrics is
// text.
#include <string>

namespace choir {

/// Whether the bytes are UTF-8: those of a JSON document must be.
bool is_utf8(const std::string& bytes);
/// The bytes for a message, with U+FFFD in place of what is not UTF-8.
std::string shown_as_text(const std::string& bytes);

}  // namespace choir
