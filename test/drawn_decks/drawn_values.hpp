#pragma once
// The keys of a deck that are given random values, and those values, which follow from the types,
// ranges and names in the table of keys.
#include <string>
#include <utility>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir::test {

/// A key with the words that may be its value in an override.
struct KeyWords {
  const Key* key = nullptr;
  std::vector<std::string> words;
};

/// The keys that decide the computation of `choir verify` for this deck, except those of its
/// layout. Numbers are near those of the deck, and at most twice as large, because runs have to
/// stay small.
std::vector<KeyWords> words_of(const Deck& deck);

/// True for keys whose values all have names: names, true and false.
bool is_named(const Key& key);

/// Values of other keys without which this value would be refused, or would have no effect.
std::vector<std::pair<std::string, std::string>> companions(const std::string& key,
                                                            const std::string& word,
                                                            const std::string& family);

}  // namespace choir::test
