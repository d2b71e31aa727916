#pragma once
// What Unicode 16 says of each code point, as far as tokenizers ask. Their expressions have the
// version of the library that trained them compiled in, which no library of Debian 12 has; so the
// tables are our own, written by unicode_tables.py.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace choir {

constexpr std::size_t kUnicodeSize = 0x110000;

/// Bits of a code point's class.
enum UnicodeClass : std::uint8_t {
  kLetter = 1,   ///< \p{L}
  kNumber = 2,   ///< \p{N}
  kBlank = 4,    ///< \s: White_Space, without U+180E
  kWord = 8,     ///< \w: alphabetic, marks, decimal digits, connectors, joiners
  kJoins = 16,   ///< may combine with what stands before it in NFC
  kChanges = 32  ///< is another one, or several, in NFC
};

/// One byte for each code point, made from the compact table; a megabyte.
std::vector<std::uint8_t> unicode_classes();

/// The same, made once.
inline const std::uint8_t* unicode_class_table() {
  static const std::vector<std::uint8_t> table = unicode_classes();
  return table.data();
}

}  // namespace choir
