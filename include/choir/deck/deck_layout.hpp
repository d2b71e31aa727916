#pragma once
// The layout that a deck asks for, and what to ask for where it does not come out. Pure and local.
#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

/// The layout a deck asks for on `ranks` ranks. Throws DeckError when the product does not come
/// out, with a table of the nearest that do.
Layout layout_of(const Deck& deck, int ranks);

}  // namespace choir
