#include "src/data/vocabulary/utf8.hpp"

#include <algorithm>
#include <cstring>

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

namespace {

/// The wrong encoding gives a text that is valid UTF-8 and has other letters.
constexpr const char* kFindEncoding =
    "find out its encoding (`file -i FILE` guesses it) and convert it: iconv -f ENCODING -t utf-8 "
    "FILE > NEW; latin1 is right only for Western languages";

}  // namespace

void refuse_utf8(std::string_view source, std::int64_t byte) {
  throw DataError(fmt::format("{} is not UTF-8 at byte {}", source, byte), kFindEncoding);
}

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
        kFindEncoding);
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

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The number of invalid bytes at the front that could begin a character, at least one.
std::size_t broken_length(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && first_code_point(text.substr(0, length + 1)).incomplete) ++length;
  return length;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string text;
  std::string_view left = held_;
  while (!left.empty()) {
    const std::size_t valid = valid_utf8(left);
    text += left.substr(0, valid);
    left.remove_prefix(valid);
    if (left.empty() || first_code_point(left).incomplete) break;
    text += kReplacement;
    left.remove_prefix(broken_length(left));
  }
  held_ = std::string(left);
  return text;
}

std::string Utf8Stream::finish() {
  const bool held = !held_.empty();
  held_.clear();
  return held ? std::string(kReplacement) : std::string();
}

std::string whole_utf8(std::string_view bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

void append_code_points(std::vector<std::int32_t>& to, std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const bool bad = point.length == 0;
    to.push_back(bad ? -1 - static_cast<unsigned char>(text[0])
                     : static_cast<std::int32_t>(point.value));
    text.remove_prefix(bad ? 1 : static_cast<std::size_t>(point.length));
  }
}

std::vector<std::string_view> split_at_blanks(std::string_view text) {
  const std::uint8_t* classes = unicode_class_table();
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    const std::size_t next = at + static_cast<std::size_t>(std::max(c.length, 1));
    const bool separator = c.value >= 0x1C && c.value <= 0x1F;
    if (c.length > 0 && (separator || (classes[c.value] & kBlank) != 0)) {
      close(at);
      begin = next;
    }
    at = next;
  }
  close(text.size());
  return parts;
}

}  // namespace choir
