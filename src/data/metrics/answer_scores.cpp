#include "src/data/metrics/answer_scores.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Separates periods and commas from text. It consumes pairs of characters as a regular expression
/// does: "(not digit)[.,]" if `in_front`, else "[.,](not digit)".
std::string part_stops(const std::string& text, bool in_front) {
  const auto stop = [](char c) { return c == '.' || c == ','; };
  std::string parted;
  for (std::size_t i = 0; i < text.size();) {
    const bool pair = i + 1 < text.size();
    if (pair && in_front && !is_decimal_digit(text[i]) && stop(text[i + 1])) {
      parted += {text[i], ' ', text[i + 1], ' '};
      i += 2;
    } else if (pair && !in_front && stop(text[i]) && !is_decimal_digit(text[i + 1])) {
      parted += {' ', text[i], ' ', text[i + 1]};
      i += 2;
    } else {
      parted += text[i++];
    }
  }
  return parted;
}

std::string part_dashes(const std::string& text) {
  std::string parted;
  for (std::size_t i = 0; i < text.size(); ++i) {
    parted += text[i];
    if (is_decimal_digit(text[i]) && i + 1 < text.size() && text[i + 1] == '-') {
      parted += " - ";
      ++i;
    }
  }
  return parted;
}

using Grams = std::map<std::vector<std::string>, std::int64_t>;

Grams grams_of(const std::vector<std::string>& tokens, std::size_t order) {
  Grams grams;
  for (std::size_t i = 0; i + order <= tokens.size(); ++i)
    ++grams[{tokens.begin() + static_cast<std::ptrdiff_t>(i),
             tokens.begin() + static_cast<std::ptrdiff_t>(i + order)}];
  return grams;
}

double score_of(const BleuCounts& counts, int orders) {
  double logs = 0, smoothing = 1;
  if (orders == 0 || counts.correct[0] == 0) return 0;
  for (int n = 0; n < orders; ++n) {
    const auto at = static_cast<std::size_t>(n);
    if (counts.total[at] == 0) return 0;
    const auto total = static_cast<double>(counts.total[at]);
    if (counts.correct[at] == 0) smoothing *= 2;
    const double correct =
        counts.correct[at] == 0 ? 1 / smoothing : static_cast<double>(counts.correct[at]);
    logs += std::log(correct / total);
  }
  return 100 * counts.brevity_penalty() * std::exp(logs / orders);
}

}  // namespace

std::vector<std::string> bleu_tokens(std::string_view written) {
  // sacrebleu removes the blanks at the end first, so that a last "-\n" stays a dash.
  const auto words = split_at_blanks(written);
  if (words.empty()) return {};
  std::string text(written.data(), words.back().data() + words.back().size());
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  std::string parted = " ";
  for (const char c : text) {
    const bool symbol = (c >= '{' && c <= '~') || (c >= '[' && c <= '`') ||
                        (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
                        (c >= ':' && c <= '@') || c == '/';
    if (symbol)
      parted += {' ', c, ' '};
    else
      parted += c;
  }
  parted = part_dashes(part_stops(part_stops(parted + " ", true), false));
  const auto parts = split_at_blanks(parted);
  return {parts.begin(), parts.end()};
}

BleuCounts bleu_counts(std::string_view reference, std::string_view hypothesis) {
  const auto expected = bleu_tokens(reference), heard = bleu_tokens(hypothesis);
  BleuCounts counts;
  counts.hypothesis = std::ssize(heard);
  counts.reference = std::ssize(expected);
  for (std::size_t n = 0; n < BleuCounts::kOrders; ++n) {
    const Grams there = grams_of(expected, n + 1);
    for (const auto& [gram, count] : grams_of(heard, n + 1)) {
      counts.total[n] += count;
      if (const auto at = there.find(gram); at != there.end())
        counts.correct[n] += std::min(count, at->second);
    }
  }
  return counts;
}

double BleuCounts::brevity_penalty() const {
  if (hypothesis >= reference) return 1;
  if (hypothesis == 0) return 0;
  return std::exp(1 - static_cast<double>(reference) / static_cast<double>(hypothesis));
}

double BleuCounts::score() const {
  return score_of(*this, kOrders);
}

double BleuCounts::sentence_score() const {
  int orders = 0;
  while (orders < kOrders && total[static_cast<std::size_t>(orders)] > 0) ++orders;
  return score_of(*this, orders);
}

BleuCounts& BleuCounts::operator+=(const BleuCounts& other) {
  for (std::size_t n = 0; n < kOrders; ++n) {
    correct[n] += other.correct[n];
    total[n] += other.total[n];
  }
  hypothesis += other.hypothesis;
  reference += other.reference;
  return *this;
}

bool exact_match(std::string_view reference, std::string_view hypothesis) {
  return split_at_blanks(reference) == split_at_blanks(hypothesis);
}

namespace {

/// Pointers to the integers of scores, in the order of serialisation.
template <class Scores>
auto members_of(Scores& s) {
  std::vector<decltype(&s.answers)> all{&s.answers,
                                        &s.exact,
                                        &s.words.insertions,
                                        &s.words.deletions,
                                        &s.words.substitutions,
                                        &s.words.correct,
                                        &s.words.utterances,
                                        &s.words.exact,
                                        &s.bleu.hypothesis,
                                        &s.bleu.reference};
  for (auto& n : s.bleu.correct) all.push_back(&n);
  for (auto& n : s.bleu.total) all.push_back(&n);
  return all;
}

}  // namespace

void AnswerScores::add(std::string_view reference, std::string_view answer) {
  ++answers;
  exact += choir::exact_match(reference, answer) ? 1 : 0;
  words += word_edits(reference, answer);
  bleu += bleu_counts(reference, answer);
}

AnswerScores& AnswerScores::operator+=(const AnswerScores& other) {
  answers += other.answers;
  exact += other.exact;
  words += other.words;
  bleu += other.bleu;
  return *this;
}

std::vector<std::int64_t> AnswerScores::integers() const {
  std::vector<std::int64_t> all;
  for (const std::int64_t* n : members_of(*this)) all.push_back(*n);
  return all;
}

AnswerScores AnswerScores::of_integers(std::span<const std::int64_t> integers) {
  AnswerScores scores;
  const auto places = members_of(scores);
  CHOIR_CHECK(integers.size() == places.size(), "{} integers are no scores of answers",
              integers.size());
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = integers[i];
  return scores;
}

}  // namespace choir
