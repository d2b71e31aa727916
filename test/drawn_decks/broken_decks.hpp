#pragma once
// Legal decks with one broken key, in the file or on the command line, and the message that choir
// must print about each.
#include <cstdint>
#include <string>
#include <vector>

#include "test/drawn_decks/legal_decks.hpp"

namespace choir::test {

struct BrokenDeck {
  std::string kind;  ///< "wrong type", "duplicate" ...
  std::string text;  ///< text of the file
  std::vector<std::string> overrides;
  std::string named;  ///< words that a message about it must contain
};

/// `number` counts from 0; kinds come in turns.
BrokenDeck draw_broken_deck(std::uint64_t seed, std::size_t number);
/// All kinds.
std::vector<std::string> kinds_of_breaks();

/// Returns "" if the deck is refused correctly: a DeckError whose words contain the name, after
/// less than a second of processor time. Otherwise returns the finding.
std::string finding(const BrokenDeck& deck);

}  // namespace choir::test
