#pragma once
// A deck that can be asked again with other values, so that what is legal is decided in one place:
// where decks are checked; and a deck as a file again. Local.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir {

class DeckVariants {
 public:
  /// The text of a deck, its file name, and the overrides of the command line. `vocabulary`: for a
  /// deck that takes it from its data.
  DeckVariants(std::string text, std::string path, std::vector<std::string> overrides,
               std::int64_t vocabulary = 0);

  /// With these "key.path=value" instead of what was given. Throws DeckError.
  Deck with(const std::vector<std::string>& changes) const;
  /// The same; nothing where the deck would be refused.
  std::optional<Deck> legal_with(const std::vector<std::string>& changes) const;

 private:
  std::string text_, path_;
  std::vector<std::string> overrides_;
  std::int64_t vocabulary_;
};

/// Pure. `text` with the values that `deck`, parsed from it, got on the command line. Keys stay in
/// their order; comments are lost.
std::string written_deck(const std::string& text, const Deck& deck);

}  // namespace choir
