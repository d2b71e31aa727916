#include "src/data/audio/transcript_form.hpp"

#include <fmt/core.h>
#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr std::size_t kMostCharacters = 64;

bool is_apostrophe(char32_t c) {
  return c == '\'' || c == 0x2019 || c == 0x02bc;
}

/// Hyphens, dashes and slashes, which stand between words.
bool parts_words(char32_t c) {
  return c == '-' || c == '/' || (c >= 0x2010 && c <= 0x2015) || c == 0x2212;
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

bool is_word_sign(char32_t c) {
  constexpr std::uint8_t kSpoken = kLetter | kNumber | kWord;
  return c < kUnicodeSize && c != '_' && (unicode_class_table()[c] & kSpoken) != 0;
}

}  // namespace

std::string lower_case(const std::string& text) {
  static const locale_t letters = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (letters == nullptr)
    throw Error(ExitCode::other,
                "this system has no locale C.UTF-8, whose letters are needed for lower case");
  std::string lower;
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    std::uint32_t letter = length == 1 ? first : first & (0xffu >> (length + 1));
    bool whole = first < 0x80 || (first >= 0xc2 && first < 0xf5 && at + length <= text.size());
    for (std::size_t i = 1; i < length && whole; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      whole = (next & 0xc0) == 0x80;
      letter = letter << 6 | (next & 0x3f);
    }
    if (!whole) {
      lower += text[at++];
      continue;
    }
    at += length;
    letter = static_cast<std::uint32_t>(towlower_l(static_cast<wint_t>(letter), letters));
    if (letter < 0x80) {
      lower += static_cast<char>(letter);
    } else if (letter < 0x800) {
      lower += static_cast<char>(0xc0 | letter >> 6);
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    } else if (letter < 0x10000) {
      lower += static_cast<char>(0xe0 | letter >> 12);
      lower += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    } else {
      lower += static_cast<char>(0xf0 | letter >> 18);
      lower += static_cast<char>(0x80 | (letter >> 12 & 0x3f));
      lower += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return lower;
}

std::string without_punctuation(const std::string& text) {
  if (valid_utf8(text) != text.size()) return text;
  std::string words;
  bool blank = false, in_word = false, digit = false, sign_after_digit = false;
  const auto put = [&](char32_t c) {
    if (blank && !words.empty()) words += ' ';
    blank = false;
    append_utf8(words, c);
  };
  for (std::string_view rest = text; !rest.empty();) {
    const CodePoint now = first_code_point(rest);
    rest.remove_prefix(static_cast<std::size_t>(now.length));
    const bool word = is_word_sign(now.value);
    if (word) {
      blank = blank || (sign_after_digit && is_digit(now.value));
      put(now.value);
    } else if (is_apostrophe(now.value) && in_word && !rest.empty() &&
               is_word_sign(first_code_point(rest).value)) {
      put('\'');
    } else if (parts_words(now.value) || now.value < 0x20 ||
               (now.value < kUnicodeSize && (unicode_class_table()[now.value] & kBlank) != 0)) {
      blank = true;
    }
    sign_after_digit = !word && (digit || sign_after_digit);
    digit = is_digit(now.value);
    in_word = word;
  }
  return words;
}

bool parts_numbers(const std::string& text) {
  bool digit = false, sign_after_digit = false;
  for (std::string_view rest = text; !rest.empty();) {
    const CodePoint now = first_code_point(rest);
    rest.remove_prefix(static_cast<std::size_t>(std::max(now.length, 1)));
    const bool sign = now.value < 0x80 && std::ispunct(static_cast<int>(now.value)) != 0;
    if (sign_after_digit && is_digit(now.value)) return true;
    sign_after_digit = sign && (digit || sign_after_digit);
    digit = is_digit(now.value);
  }
  return false;
}

std::string TranscriptForm::of(const std::string& text) const {
  const std::string plain = without_punctuation ? choir::without_punctuation(text) : text;
  return lower_case ? choir::lower_case(plain) : plain;
}

bool UnwritableTexts::writes(const std::string& text) const {
  return vocabulary_->try_encode(text).unknown.empty();
}

bool UnwritableTexts::add(const std::string& text) {
  if (writes(text)) return false;
  ++count_;
  for (int i = 0; i < kForms; ++i)
    solved_[static_cast<std::size_t>(i)] += writes(form(i).of(text)) ? 1 : 0;
  for (std::string_view rest = text; !rest.empty() && characters_.size() < kMostCharacters;) {
    const auto length = static_cast<std::size_t>(std::max(first_code_point(rest).length, 1));
    const std::string one(rest.substr(0, length));
    if (!writes(one)) characters_.insert(one);
    rest.remove_prefix(length);
  }
  return true;
}

std::string UnwritableTexts::characters() const {
  const std::string all = join({characters_.begin(), characters_.end()}, " ");
  return characters_.size() < kMostCharacters ? all : all + " ...";
}

int UnwritableTexts::best() const {
  return static_cast<int>(std::max_element(solved_.begin(), solved_.end()) - solved_.begin());
}

std::int64_t UnwritableTexts::remaining() const {
  return count_ - solved_[static_cast<std::size_t>(best())];
}

std::string UnwritableTexts::command(const std::string& manifest) const {
  constexpr std::array kOptions{"--lower-case", "--remove-punctuation",
                                "--lower-case --remove-punctuation"};
  if (remaining() == count_) return {};
  const char* const options = kOptions[static_cast<std::size_t>(best())];
  const std::filesystem::path path(manifest);
  std::string stem = path.filename().string();
  stem.resize(std::min(stem.size(), stem.find(".json")));
  return fmt::format("choir prepare manifest {} {} --out {}", manifest, options,
                     (path.parent_path() / (stem + "_plain.json")).string());
}

}  // namespace choir
