#include "src/data/vocabulary/utf8.hpp"

#include "choir/core/error.hpp"

namespace choir {

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, false};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte alone decides about overlong forms, surrogates and values past U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t value = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) >= text.size()) return {0, 0, true};
    const unsigned next = byte(static_cast<std::size_t>(i));
    if (next < (i == 1 ? low : 0x80u) || next > (i == 1 ? high : 0xBFu)) return {};
    value = (value << 6) | (next & 0x3Fu);
  }
  return {value, length, false};
}

void append_utf8(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string name_code_point(char32_t c) {
  const auto code = static_cast<unsigned>(c);
  if (code < 0x20 || code == 0x7F) return fmt::format("U+{:04X}", code);
  std::string text;
  append_utf8(text, c);
  return fmt::format("'{}' (U+{:04X})", text, code);
}

void refuse_utf8(std::string_view source, std::int64_t byte) {
  throw DataError(fmt::format("{} is not UTF-8 at byte {}", source, byte),
                  "convert it, for example with: iconv -f latin1 -t utf-8");
}

}  // namespace choir
