#pragma once
// The layout that a deck requests, and alternatives if it does not fit the number of ranks. Pure
// and local.
#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

/// The layout that a deck requests on `ranks` ranks. Throws DeckError with a table of the nearest
/// legal layouts if the axis sizes do not match the number of ranks.
Layout layout_of(const Deck& deck, int ranks);

}  // namespace choir
