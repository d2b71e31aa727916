#pragma once
// Written English to the words that are said: numbers written out, letters a-z, apostrophe and
// blank.
#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace choir
