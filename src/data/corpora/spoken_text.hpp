#pragma once
// Texts for a synthesiser: converts written English to spoken words (letters a-z, apostrophe and
// space), and extracts short sentences of common words from a book.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// "1234567" -> "one million two hundred thirty four thousand five hundred sixty seven" (American:
/// no "and"). `number` in [0, 10^12); DataError otherwise.
std::string number_words(std::int64_t number);

/// Lower case; digits written out (a number of four digits in pairs like extensions and years:
/// "8500" eighty five hundred, "1234" twelve thirty four; digits after a point one by one; longer
/// numbers, and those that begin with 0, digit by digit), '*' star, '#' pound, '@' at, '$' dollar,
/// '%' percent, '&' and, '+' plus, '=' equals; typographic apostrophes straight, apostrophes at the
/// ends of words dropped; everything else is a blank. Text in [...], <...> or (...) is a note about
/// the sound and is dropped. "" if no word remains.
std::string spoken_words(std::string_view text);

struct ClauseRule {
  std::size_t words = 1000;                 ///< clauses consist of this many most frequent words
  std::size_t shortest = 15, longest = 60;  ///< characters including blanks between words
};

/// The clauses of `book` (one verse a line, or any text): it is lower-cased and cut at , . ; : ! ?
/// and line ends; brackets are dropped; words consist of a-z, apostrophe and hyphen. Returns the
/// clauses that obey the rule, in order of first appearance, without duplicates. Equally frequent
/// words are ranked alphabetically.
std::vector<std::string> spoken_clauses(std::string_view book, const ClauseRule& rule);

}  // namespace choir
