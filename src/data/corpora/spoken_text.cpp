#include "src/data/corpora/spoken_text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::array kSmall{"zero",    "one",     "two",       "three",    "four",
                            "five",    "six",     "seven",     "eight",    "nine",
                            "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                            "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array kTens{"",      "",      "twenty",  "thirty", "forty",
                           "fifty", "sixty", "seventy", "eighty", "ninety"};
constexpr std::int64_t kMost = 1'000'000'000'000;

std::string below_hundred(std::int64_t n) {
  if (n < 20) return kSmall[static_cast<std::size_t>(n)];
  const std::string tens = kTens[static_cast<std::size_t>(n / 10)];
  return n % 10 == 0 ? tens : tens + " " + kSmall[static_cast<std::size_t>(n % 10)];
}

std::string one_by_one(std::string_view digits) {
  std::vector<std::string> words;
  for (const char c : digits) words.emplace_back(kSmall[static_cast<std::size_t>(c - '0')]);
  return join(words, " ");
}

std::string four_digits(std::string_view digits) {
  const std::int64_t left = (digits[0] - '0') * 10 + digits[1] - '0';
  const std::int64_t right = (digits[2] - '0') * 10 + digits[3] - '0';
  if (left % 10 == 0) return number_words(left * 100 + right);  // 2000, 2005
  if (right == 0) return below_hundred(left) + " hundred";
  return below_hundred(left) + (right < 10 ? " oh " : " ") + below_hundred(right);
}

std::string digits_words(std::string_view digits) {
  if (digits.size() > 1 && digits.front() == '0') return one_by_one(digits);
  if (digits.size() == 4) return four_digits(digits);
  if (digits.size() > 4) return one_by_one(digits);
  return number_words(std::stoll(std::string(digits)));
}

std::string_view symbol_word(char c) {
  switch (c) {
    case '*':
      return "star";
    case '#':
      return "pound";
    case '@':
      return "at";
    case '$':
      return "dollar";
    case '%':
      return "percent";
    case '&':
      return "and";
    case '+':
      return "plus";
    case '=':
      return "equals";
    default:
      return "";
  }
}

/// Removes text in brackets; an unclosed bracket extends to the end.
std::string without_notes(std::string_view text) {
  std::string kept;
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '<' || c == '(') ++depth;
    if (depth == 0) kept += c;
    if (depth > 0 && (c == ']' || c == '>' || c == ')') && --depth == 0) kept += ' ';
  }
  return kept;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The words of the number at the front of `text`; sets `length` to its bytes.
std::string number_at(std::string_view text, std::size_t& length) {
  length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  std::string words = digits_words(text.substr(0, length));
  if (length + 1 < text.size() && text[length] == '.' && is_digit(text[length + 1])) {
    std::size_t end = length + 1;
    while (end < text.size() && is_digit(text[end])) ++end;
    words += " point " + one_by_one(text.substr(length + 1, end - length - 1));
    length = end;
  }
  return words;
}

std::string tidy(const std::string& text) {
  std::vector<std::string> words;
  for (std::string& word : split(text, ' ')) {
    const std::size_t first = word.find_first_not_of('\''), last = word.find_last_not_of('\'');
    if (first != std::string::npos) words.push_back(word.substr(first, last - first + 1));
  }
  return join(words, " ");
}

}  // namespace

std::string number_words(std::int64_t number) {
  if (number < 0 || number >= kMost)
    throw DataError(fmt::format("{} cannot be written in words", number), "use 0 to 10^12 - 1");
  if (number < 100) return below_hundred(number);
  struct Unit {
    std::int64_t size;
    const char* name;
  };
  for (const Unit unit : {Unit{1'000'000'000, "billion"}, Unit{1'000'000, "million"},
                          Unit{1000, "thousand"}, Unit{100, "hundred"}}) {
    if (number < unit.size) continue;
    const std::string head = number_words(number / unit.size) + " " + unit.name;
    return number % unit.size == 0 ? head : head + " " + number_words(number % unit.size);
  }
  return "";
}

std::string spoken_words(std::string_view written) {
  constexpr std::string_view kApostrophe = "\xe2\x80\x99";  // U+2019
  const std::string text = without_notes(written);
  std::string words;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    std::size_t length = 1;
    if (is_digit(c)) {
      words += ' ' + number_at(std::string_view(text).substr(at), length) + ' ';
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '\'') {
      words += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (text.compare(at, kApostrophe.size(), kApostrophe) == 0) {
      words += '\'';
      length = kApostrophe.size();
    } else {
      words += ' ';
      words += symbol_word(c);
      words += ' ';
    }
    at += length;
  }
  return tidy(words);
}

namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || c == '\'' || c == '-';
}

/// The words of every clause. Characters of `kEnds` separate clauses; other characters that are not
/// in words separate words.
std::vector<std::vector<std::string>> split_clauses(std::string_view book) {
  constexpr std::string_view kEnds = ",.;:!?\n";
  std::vector<std::vector<std::string>> clauses(1);
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) clauses.back().push_back(std::move(word));
    word.clear();
  };
  for (const char upper : book) {
    const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(upper)));
    if (in_word(c)) {
      word += c;
      continue;
    }
    end_word();
    if (kEnds.find(c) != std::string_view::npos && !clauses.back().empty()) clauses.emplace_back();
  }
  end_word();
  return clauses;
}

std::set<std::string> commonest(const std::vector<std::vector<std::string>>& clauses,
                                std::size_t most) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& clause : clauses)
    for (const std::string& word : clause) ++counts[word];
  std::vector<std::pair<std::string, std::int64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (order.size() > most) order.resize(most);
  std::set<std::string> kept;
  for (const auto& [word, count] : order) kept.insert(word);
  return kept;
}

}  // namespace

std::vector<std::string> spoken_clauses(std::string_view book, const ClauseRule& rule) {
  const auto clauses = split_clauses(book);
  const std::set<std::string> common = commonest(clauses, rule.words);
  std::vector<std::string> kept;
  std::set<std::string> seen;
  for (const auto& clause : clauses) {
    if (!std::all_of(clause.begin(), clause.end(),
                     [&](const std::string& word) { return common.contains(word); }))
      continue;
    const std::string text = join(clause, " ");
    if (text.size() < rule.shortest || text.size() > rule.longest) continue;
    if (seen.insert(text).second) kept.push_back(text);
  }
  return kept;
}

}  // namespace choir
