#pragma once
// A deck that can be parsed again with other values, so that only the deck's own checks decide what
// is legal; and the conversion of a deck back to a file. Local.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir {

class DeckVariants {
 public:
  /// The text of a deck, its file name, and the overrides of the command line. `vocabulary` is used
  /// if the deck takes its vocabulary from the data.
  DeckVariants(std::string text, std::string path, std::vector<std::string> overrides,
               std::int64_t vocabulary = 0);

  /// Parses the deck with these "key.path=value" changes in place of the given values. Throws
  /// DeckError.
  Deck with(const std::vector<std::string>& changes) const;
  /// Parses the deck in the same way; nullopt if it would be refused.
  std::optional<Deck> legal_with(const std::vector<std::string>& changes) const;

 private:
  std::string text_, path_;
  std::vector<std::string> overrides_;
  std::int64_t vocabulary_;
};

/// Returns `text` with the values that `deck`, parsed from it, got on the command line. Keys keep
/// their order; comments are lost. Pure.
std::string written_deck(const std::string& text, const Deck& deck);

}  // namespace choir
