#include "choir/plan/deck_variants.hpp"

#include <algorithm>
#include <utility>

namespace choir {

DeckVariants::DeckVariants(std::string text, std::string path, std::vector<std::string> overrides,
                           std::int64_t vocabulary)
    : text_(std::move(text)),
      path_(std::move(path)),
      overrides_(std::move(overrides)),
      vocabulary_(vocabulary) {}

Deck DeckVariants::with(const std::vector<std::string>& changes) const {
  std::vector<std::string> words = changes;
  for (const std::string& given : overrides_) {
    const std::string key = given.substr(0, given.find('=')) + "=";
    if (std::none_of(changes.begin(), changes.end(),
                     [&](const std::string& change) { return change.starts_with(key); }))
      words.push_back(given);
  }
  Deck deck = parse_deck(text_, path_, words);
  if (deck.model.gpt.vocab_size == 0) deck.model.gpt.vocab_size = vocabulary_;
  return deck;
}

std::optional<Deck> DeckVariants::legal_with(const std::vector<std::string>& changes) const {
  try {
    return with(changes);
  } catch (const DeckError&) {
    return std::nullopt;
  }
}

}  // namespace choir
