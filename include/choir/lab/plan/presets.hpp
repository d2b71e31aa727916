#pragma once
// Well-known published models as decks, so that they can be planned without a deck file. Pure.
#include <string>
#include <vector>

namespace choir {

/// The names of the presets, "gpt2", "llama3-8b" ...; their sizes are the published ones.
std::vector<std::string> preset_names();
/// Returns the text of a deck with random tokens, in bf16-mixed and micro-batches of one sequence
/// of full length; "" for an unknown name.
std::string preset_deck(const std::string& name);

}  // namespace choir
