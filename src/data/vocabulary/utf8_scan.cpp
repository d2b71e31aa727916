#include "src/data/vocabulary/utf8_scan.hpp"

#include <cstring>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {

std::size_t valid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080u;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & kHighBits) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const int length = first_code_point(text.substr(at)).length;
    if (length == 0) break;
    at += static_cast<std::size_t>(length);
  }
  return at;
}

std::string_view whole_characters(std::string_view text, bool more_follows, std::string_view source,
                                  std::int64_t base) {
  const std::size_t valid = valid_utf8(text);
  if (valid < text.size() && !(more_follows && first_code_point(text.substr(valid)).incomplete))
    throw DataError(
        fmt::format("{} is not UTF-8 at byte {}", source, base + static_cast<std::int64_t>(valid)),
        "convert it, for example with: iconv -f latin1 -t utf-8");
  return text.substr(0, valid);
}

std::size_t previous_character(std::string_view text, std::size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool word_before(std::string_view text, std::size_t at) {
  return at > 0 && (Utf8Scan(text).at(previous_character(text, at)).classes & kWord);
}

std::size_t before_trailing_blanks(std::string_view text) {
  const Utf8Scan scan(text);
  std::size_t begin = text.size();
  while (begin > 0) {
    const std::size_t last = previous_character(text, begin);
    if ((scan.at(last).classes & kBlank) == 0) break;
    begin = last;
  }
  return begin;
}

}  // namespace choir
