#pragma once
// Scores of generated texts against reference texts, as counts over a corpus: word errors, exact
// matches and BLEU. Pure. BLEU (Papineni et al. 2002) uses the tokens of mteval-v13a and the
// exponential smoothing of Chen and Cherry (2014, method 3), as sacrebleu computes it.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/metrics/edit_distance.hpp"

namespace choir {

/// Counts for the BLEU score of any number of pairs. All members are sums, so counts of several
/// ranks are added member by member. The score is computed from the sums; it is never a mean of
/// scores.
struct BleuCounts {
  static constexpr int kOrders = 4;
  std::array<std::int64_t, kOrders> correct{},
      total{};  ///< n-grams; the correct ones are clipped to the count in the reference
  std::int64_t hypothesis = 0, reference = 0;  ///< tokens

  /// BLEU of the corpus, 0 to 100. Orders that have n-grams but no correct one are smoothed: the
  /// k-th such order counts 1 / (2^k total). The score is 0 if an order has no n-grams at all.
  double score() const;
  /// The same, computed only over the orders that a short text has (for single sentences).
  double sentence_score() const;
  /// exp(1 - reference / hypothesis) if the hypothesis is shorter than the reference, else 1.
  double brevity_penalty() const;
  BleuCounts& operator+=(const BleuCounts& other);
  friend bool operator==(const BleuCounts&, const BleuCounts&) = default;
};

/// Tokens as in mteval-v13a: punctuation and symbols are tokens of their own, except periods and
/// commas between digits; a dash after a digit is a token.
std::vector<std::string> bleu_tokens(std::string_view text);
BleuCounts bleu_counts(std::string_view reference, std::string_view hypothesis);
/// True if both texts are equal apart from white space at the ends and the amount of white space
/// inside.
bool exact_match(std::string_view reference, std::string_view hypothesis);

/// All members are sums over answers.
struct AnswerScores {
  std::int64_t answers = 0, exact = 0;
  EditCounts words;
  BleuCounts bleu;

  void add(std::string_view reference, std::string_view answer);
  AnswerScores& operator+=(const AnswerScores& other);
  double exact_match() const { return static_cast<double>(exact) / static_cast<double>(answers); }
  /// The counts as integers, for sums over ranks: of_integers() of summed integers() gives the
  /// summed scores.
  std::vector<std::int64_t> integers() const;
  static AnswerScores of_integers(std::span<const std::int64_t> integers);
  friend bool operator==(const AnswerScores&, const AnswerScores&) = default;
};

}  // namespace choir
