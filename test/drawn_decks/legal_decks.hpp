#pragma once
// Random legal decks: a deck of inputs/verify_*.json in which keys are given other values that the
// table of keys allows, with layouts of up to four ranks. Everything is a function of the number of
// the deck and the seed.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir::test {

struct LegalDeck {
  std::string base;                          ///< "inputs/verify_gpt.json"
  std::map<std::string, std::string> given;  ///< words of overrides by key
  std::string precision = "fp64";            ///< --precision
  std::vector<std::string> layouts;          ///< layouts of two ranks or more
  int ranks = 1;                             ///< ranks of the largest layout

  std::vector<std::string> overrides() const;
  /// The arguments of `choir`, quoted for a shell.
  std::string command() const;
};

/// The values drawn so far, and how many of them the checks accepted and refused.
class Coverage {
 public:
  void add(const LegalDeck& deck);
  /// "FAMILY KEY=VALUE" of names, of true and false, and of layouts, that no deck had.
  std::vector<std::string> missing() const;
  std::string to_string() const;

  std::int64_t accepted = 0, refused = 0;

 private:
  std::map<std::string, std::set<std::string>> values_;  // by "FAMILY KEY"
};

/// `number` counts from 0. Named values are given in turns, so that a few decks have many of them.
/// Layouts take most of the time; `laid_out` = false leaves them out.
LegalDeck draw_legal_deck(std::uint64_t seed, std::size_t number, Coverage& coverage,
                          bool laid_out = true);

/// The deck as parse_deck reads it.
Deck parsed(const LegalDeck& deck);

}  // namespace choir::test
