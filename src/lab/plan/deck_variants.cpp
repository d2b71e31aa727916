#include "choir/lab/plan/deck_variants.hpp"

#include <algorithm>
#include <utility>

#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"

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
  if (std::int64_t& size = deck.family().vocab_size(deck); size == 0) size = vocabulary_;
  return deck;
}

std::optional<Deck> DeckVariants::legal_with(const std::vector<std::string>& changes) const {
  try {
    return with(changes);
  } catch (const DeckError&) {
    return std::nullopt;
  }
}

std::string written_deck(const std::string& text, const Deck& deck) {
  using Json = nlohmann::ordered_json;
  Json root = parsed_commented_json(text);
  const Json resolved = parsed_ordered_json(resolved_json(deck));
  for (const auto& [key, origin] : deck.origins) {
    if (origin.source != KeySource::command) continue;
    const Json* from = &resolved;
    Json* to = &root;
    for (const std::string& part : split(key, '.')) {
      // A map with user-defined names is written as a whole.
      if (!from->is_object() || !from->contains(part)) break;
      from = &from->at(part);
      if (!to->is_object()) *to = Json::object();
      to = &(*to)[part];
    }
    *to = *from;
  }
  return dumped(root, 2) + "\n";
}

}  // namespace choir
