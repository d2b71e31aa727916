#pragma once
// A deck as a file again. Pure.
#include <string>

#include "choir/train/deck/deck.hpp"

namespace choir {

/// `text` with the values that `deck`, parsed from it, got on the command line. Keys stay in their
/// order; comments are lost.
std::string written_deck(const std::string& text, const Deck& deck);

}  // namespace choir
