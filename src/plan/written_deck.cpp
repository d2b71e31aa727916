#include "choir/plan/written_deck.hpp"

#include <nlohmann/json.hpp>

#include "choir/core/text.hpp"

namespace choir {

std::string written_deck(const std::string& text, const Deck& deck) {
  using Json = nlohmann::ordered_json;
  Json root = Json::parse(text, nullptr, true, true);
  const Json resolved = Json::parse(resolved_json(deck));
  for (const auto& [key, origin] : deck.origins) {
    if (origin.source != KeySource::command) continue;
    const Json* from = &resolved;
    Json* to = &root;
    for (const std::string& part : split(key, '.')) {
      // Of a map with names of its own the whole map is written.
      if (!from->is_object() || !from->contains(part)) break;
      from = &from->at(part);
      if (!to->is_object()) *to = Json::object();
      to = &(*to)[part];
    }
    *to = *from;
  }
  return root.dump(2) + "\n";
}

}  // namespace choir
