#pragma once
// Models whose sizes everybody knows, as decks, so that they can be planned without one. Pure.
#include <string>
#include <vector>

namespace choir {

/// "gpt2", "llama3-8b" ...: the sizes that their makers published.
std::vector<std::string> preset_names();
/// The text of a deck with random tokens, in bf16-mixed and micro-batches of one sequence of full
/// length; "" for an unknown name.
std::string preset_deck(const std::string& name);

}  // namespace choir
