#pragma once
// The keys of a deck that are given random values, and those values, which follow from the types,
// ranges and names in the table of keys.
#include <string>
#include <utility>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir::test {

/// A key with the words that may stand for it in an override.
struct KeyWords {
  const Key* key = nullptr;
  std::vector<std::string> words;
};

/// The keys that decide what `choir verify` computes for this deck, but for those of its layout.
/// Numbers are near those of the deck, and at most twice as large, as runs have to stay small.
std::vector<KeyWords> words_of(const Deck& deck);

/// True for keys of which all values are named: names, true and false.
bool is_named(const Key& key);

/// Values of other keys without which this one would be refused, or would have no effect.
std::vector<std::pair<std::string, std::string>> companions(const std::string& key,
                                                            const std::string& word,
                                                            const std::string& family);

}  // namespace choir::test
