#include "src/data/vocabulary/pre_tokenizers.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

struct Known {
  Splitter splitter;
  std::string_view name, expression;
};

constexpr std::array<Known, 5> kKnown{{
    {Splitter::gpt2, "gpt2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Splitter::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Splitter::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Splitter::tekken, "tekken",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Splitter::o200k, "o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

const Known* known(Splitter splitter) {
  for (const Known& one : kKnown)
    if (one.splitter == splitter) return &one;
  return nullptr;
}

constexpr unsigned kNoSign = kLetter | kNumber | kBlank;

bool is_line_end(unsigned byte) {
  return byte == '\r' || byte == '\n';
}

/// The length of the contraction ('s 't 're 've 'm 'll 'd) at `at`, where there is an apostrophe; 0
/// if there is none. With `any_case` a long s counts, too: it equals s when case is ignored.
std::size_t contraction(const Utf8Scan& scan, std::size_t at, bool any_case) {
  const auto letter = [&](std::size_t i) -> unsigned {
    if (i >= scan.size()) return 0;
    const unsigned byte = scan.byte(i);
    return any_case && byte >= 'A' && byte <= 'Z' ? byte | 0x20u : byte;
  };
  const unsigned first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (any_case && first == 0xC5 && second == 0xBF) return 3;
  return 0;
}

/// The end of the blanks from `at` on, without the last one if a following word may include it.
std::size_t blanks_end(const Utf8Scan& scan, std::size_t at) {
  const std::size_t end = scan.past(at, kBlank);
  if (end == scan.size()) return end;
  const std::size_t last = previous_character(scan.text(), end);
  return last > at ? last : end;
}

std::size_t gpt2_end(const Utf8Scan& scan, std::size_t at) {
  if (scan.byte(at) == '\'')
    if (const std::size_t length = contraction(scan, at, false); length > 0) return at + length;
  std::size_t from = at;
  Utf8Scan::Character c = scan.at(at);
  if (scan.byte(at) == ' ' && at + 1 < scan.size()) {
    const Utf8Scan::Character next = scan.at(at + 1);
    if ((next.classes & kBlank) == 0) {
      from = at + 1;
      c = next;
    }
  }
  if (c.classes & kLetter) return scan.past(from + c.length, kLetter);
  if (c.classes & kNumber) return scan.past(from + c.length, kNumber);
  if (c.classes & kBlank) return blanks_end(scan, at);
  return scan.until(from + c.length, kNoSign);
}

/// Llama 3 and Qwen differ only in the number of digits per piece.
std::size_t lines_end(const Utf8Scan& scan, std::size_t at, int most_digits) {
  const unsigned byte = scan.byte(at);
  if (byte == '\'')
    if (const std::size_t length = contraction(scan, at, true); length > 0) return at + length;
  const Utf8Scan::Character c = scan.at(at);
  const std::size_t behind = at + c.length;
  if (c.classes & kLetter) return scan.past(behind, kLetter);
  if (c.classes & kNumber) {
    std::size_t end = behind;
    for (int digits = 1; digits < most_digits && end < scan.size(); ++digits) {
      const Utf8Scan::Character next = scan.at(end);
      if ((next.classes & kNumber) == 0) break;
      end += next.length;
    }
    return end;
  }
  const unsigned next = behind < scan.size() ? scan.at(behind).classes : unsigned{kBlank};
  if ((next & kLetter) && !is_line_end(byte)) return scan.past(behind, kLetter);
  const bool blank = c.classes & kBlank;
  if (!blank || (byte == ' ' && (next & kNoSign) == 0)) {
    std::size_t end = scan.until(behind, kNoSign);
    while (end < scan.size() && is_line_end(scan.byte(end))) ++end;
    return end;
  }
  // A run of blanks is one piece up to its last line end.
  const std::size_t end = scan.past(at, kBlank);
  for (std::size_t last = end; last > at; --last)
    if (is_line_end(scan.byte(last - 1))) return last;
  return blanks_end(scan, at);
}

/// The end of [UPPER]*[LOWER]+ at `from`; 0 without a match. The first part gives back characters
/// that belong to both, if it leaves none to the second.
std::size_t small_word_end(const Utf8Scan& scan, std::size_t from) {
  const std::size_t end = scan.past(from, kUpper);
  if (end < scan.size() && (scan.at(end).classes & kLower) != 0) return scan.past(end, kLower);
  for (std::size_t behind = end; behind > from;) {
    const std::size_t last = previous_character(scan.text(), behind);
    if ((scan.at(last).classes & kLower) != 0) return behind;
    behind = last;
  }
  return 0;
}

/// The end of [UPPER]+[LOWER]* at `from`; 0 without a match.
std::size_t capital_word_end(const Utf8Scan& scan, std::size_t from) {
  const std::size_t end = scan.past(from, kUpper);
  return end == from ? 0 : scan.past(end, kLower);
}

/// Tekken and o200k divide words in front of capital letters.
std::size_t cased_end(const Utf8Scan& scan, std::size_t at, bool contractions, int most_digits) {
  const unsigned byte = scan.byte(at);
  const Utf8Scan::Character c = scan.at(at);
  const std::size_t behind = at + c.length;
  const bool leads = !is_line_end(byte) && (c.classes & (kLetter | kNumber)) == 0;
  std::size_t end = leads ? small_word_end(scan, behind) : 0;
  if (end == 0) end = small_word_end(scan, at);
  if (end == 0 && leads) end = capital_word_end(scan, behind);
  if (end == 0) end = capital_word_end(scan, at);
  if (end > 0) {
    if (contractions && end < scan.size() && scan.byte(end) == '\'')
      end += contraction(scan, end, true);
    return end;
  }
  if (c.classes & kNumber) return lines_end(scan, at, most_digits);
  const unsigned next = behind < scan.size() ? scan.at(behind).classes : unsigned{kBlank};
  const bool blank = c.classes & kBlank;
  if (!blank || (byte == ' ' && (next & kNoSign) == 0)) {
    end = scan.until(behind, kNoSign);
    while (end < scan.size() && (is_line_end(scan.byte(end)) || scan.byte(end) == '/')) ++end;
    return end;
  }
  return lines_end(scan, at, most_digits);
}

std::size_t digits_end(const Utf8Scan& scan, std::size_t at, bool alone) {
  const Utf8Scan::Character c = scan.at(at);
  if ((c.classes & kNumber) == 0) return scan.until(at + c.length, kNumber);
  return alone ? at + c.length : scan.past(at + c.length, kNumber);
}

std::size_t word_end(std::string_view text, std::size_t at) {
  return std::min({text.find(' ', at + 1), text.find(kBlankSign, at + 1), text.size()});
}

}  // namespace

bool begins_with_blank(std::string_view text, bool or_sign) {
  return text.starts_with(' ') || (or_sign && text.starts_with(kBlankSign));
}

std::string_view name_of(Splitter splitter) {
  const Known* one = known(splitter);
  CHOIR_CHECK(one != nullptr, "a splitter without a name");
  return one->name;
}

std::string_view expression_of(Splitter splitter) {
  const Known* one = known(splitter);
  return one == nullptr ? std::string_view() : one->expression;
}

std::optional<Splitter> splitter_of_expression(std::string_view expression) {
  for (const Known& one : kKnown)
    if (one.expression == expression) return one.splitter;
  return std::nullopt;
}

std::size_t piece_end(Splitter splitter, std::string_view text, std::size_t at) {
  const Utf8Scan scan(text);
  switch (splitter) {
    case Splitter::gpt2:
      return gpt2_end(scan, at);
    case Splitter::llama3:
      return lines_end(scan, at, 3);
    case Splitter::qwen2:
      return lines_end(scan, at, 1);
    case Splitter::tekken:
      return cased_end(scan, at, false, 1);
    case Splitter::o200k:
      return cased_end(scan, at, true, 3);
    case Splitter::digits:
      return digits_end(scan, at, true);
    case Splitter::contiguous_digits:
      return digits_end(scan, at, false);
    case Splitter::words:
      return word_end(text, at);
  }
  return text.size();
}

std::size_t decided_by(Splitter splitter, std::string_view text, std::size_t end) {
  if (splitter != Splitter::tekken && splitter != Splitter::o200k) return end;
  return Utf8Scan(text).past(end, kLetter | kUpper | kLower);
}

// The end of a piece depends on one following character, on a contraction or on the following
// blanks. If none of these reaches the blanks at the end of the text, the text that follows has no
// influence.
std::size_t PreTokenizer::certain_end(std::string_view text) {
  constexpr std::size_t kLookedAhead = 16;
  const std::size_t end = before_trailing_blanks(text);
  return end > kLookedAhead ? end - kLookedAhead : 0;
}

std::vector<std::string_view> PreTokenizer::pieces(std::string_view text) const {
  std::vector<std::string_view> all;
  split(text, [&](std::string_view piece) { all.push_back(piece); });
  return all;
}

}  // namespace choir
