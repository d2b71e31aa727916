#pragma once
// Texts for a synthesiser: written English to the words that are said (letters a-z, apostrophe and
// space), and short sentences of common words out of a book.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// "1234567" -> "one million two hundred thirty four thousand five hundred sixty seven" (American:
/// no "and"). `number` in [0, 10^12); DataError otherwise.
std::string number_words(std::int64_t number);

/// Lower case; digits written out (a number of four digits in pairs as extensions and years are
/// said: "8500" eighty five hundred, "1234" twelve thirty four; digits after a point one by one;
/// longer ones, and those that begin with 0, digit by digit), '*' star, '#' pound, '@' at, '$'
/// dollar, '%' percent, '&' and, '+' plus, '=' equals; typographic apostrophes straight,
/// apostrophes at the ends of words dropped; everything else is a blank. What stands in [...],
/// <...> or (...) is a note about the sound and left out. "" when nothing is said.
std::string spoken_words(std::string_view text);

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
