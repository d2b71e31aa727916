#pragma once
// Iteration over valid UTF-8 with the class of each character.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/data/vocabulary/unicode_tables.hpp"

namespace choir {

/// The number of bytes at the front that form whole, well-formed sequences.
std::size_t valid_utf8(std::string_view text);
/// `text` without an incomplete character at its end, which is legal only if more text follows.
/// Throws DataError with the position (plus `base`) if the text is not UTF-8.
std::string_view whole_characters(std::string_view text, bool more_follows, std::string_view source,
                                  std::int64_t base);

/// The beginning of the blanks at the end of `text`.
std::size_t before_trailing_blanks(std::string_view text);
/// The beginning of the character that ends at `at` > 0.
std::size_t previous_character(std::string_view text, std::size_t at);
/// True if the character that ends at `at` is a word character (\w); false at the beginning.
bool word_before(std::string_view text, std::size_t at);

/// Characters of well-formed text.
class Utf8Scan {
 public:
  explicit Utf8Scan(std::string_view text) : text_(text) {}

  struct Character {
    std::uint8_t classes = 0;
    std::uint8_t length = 0;
  };
  /// The character that begins at `at` < size().
  Character at(std::size_t at) const {
    const unsigned lead = byte(at);
    if (lead < 0x80) return {classes_[lead], 1};
    if (lead < 0xE0) return {classes_[(lead & 0x1F) << 6 | tail(at + 1)], 2};
    if (lead < 0xF0) return {classes_[(lead & 0x0F) << 12 | tail(at + 1) << 6 | tail(at + 2)], 3};
    return {classes_[(lead & 0x07) << 18 | tail(at + 1) << 12 | tail(at + 2) << 6 | tail(at + 3)],
            4};
  }
  /// The first position from `from` on whose character has none of the `wanted` classes.
  std::size_t past(std::size_t from, unsigned wanted) const {
    while (from < text_.size()) {
      const Character c = at(from);
      if ((c.classes & wanted) == 0) break;
      from += c.length;
    }
    return from;
  }
  /// The first position from `from` on whose character has one of the `unwanted` classes.
  std::size_t until(std::size_t from, unsigned unwanted) const {
    while (from < text_.size()) {
      const Character c = at(from);
      if ((c.classes & unwanted) != 0) break;
      from += c.length;
    }
    return from;
  }
  unsigned byte(std::size_t at) const { return static_cast<unsigned char>(text_[at]); }
  std::size_t size() const { return text_.size(); }
  std::string_view text() const { return text_; }

 private:
  unsigned tail(std::size_t at) const { return byte(at) & 0x3F; }

  std::string_view text_;
  const std::uint8_t* classes_ = unicode_class_table();
};

}  // namespace choir
