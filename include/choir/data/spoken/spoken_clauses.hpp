#pragma once
// Sentences for a synthesiser out of a book: short, of common words, each once.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

struct ClauseRule {
  std::size_t words = 1000;                 ///< only the commonest so many words of the book
  std::size_t shortest = 15, longest = 60;  ///< letters, blanks between words among them
};

/// The clauses of `book` (one verse a line, or any text): it is lower-cased and cut at , . ; : ! ?
/// and line ends; brackets are dropped; words are of a-z, apostrophe and hyphen. Kept is what obeys
/// the rule, in order of first appearance, duplicates left out. Ties among common words go to the
/// alphabet.
std::vector<std::string> spoken_clauses(std::string_view book, const ClauseRule& rule);

}  // namespace choir
