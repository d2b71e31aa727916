#pragma once
// BLEU (Papineni et al. 2002) as counts over a corpus, with the tokens of mteval-v13a and the
// exponential smoothing of Chen and Cherry (2014, method 3), as sacrebleu computes it. Pure.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// What BLEU needs of any number of pairs. All members are sums, so that counts of ranks are added
/// member by member; the score is that of the sums, never a mean of scores.
struct BleuCounts {
  static constexpr int kOrders = 4;
  std::array<std::int64_t, kOrders> correct{}, total{};  ///< n-grams, clipped to the reference's
  std::int64_t hypothesis = 0, reference = 0;            ///< tokens

  /// 0 to 100, of the corpus. Orders with n-grams but no correct one are smoothed: the k-th of them
  /// counts 1 / (2^k total). 0 where an order has no n-grams at all.
  double score() const;
  /// The same over the orders that a short text has (for single sentences).
  double sentence_score() const;
  /// exp(1 - reference / hypothesis) where the hypothesis is shorter, else 1.
  double brevity_penalty() const;
  BleuCounts& operator+=(const BleuCounts& other);
  friend bool operator==(const BleuCounts&, const BleuCounts&) = default;
};

/// Tokens of mteval-v13a: punctuation and symbols apart, periods and commas but between digits,
/// a dash behind a digit.
std::vector<std::string> bleu_tokens(std::string_view text);
BleuCounts bleu_counts(std::string_view reference, std::string_view hypothesis);
/// Whether both are equal but for white space at the ends and how much of it is within.
bool exact_match(std::string_view reference, std::string_view hypothesis);

}  // namespace choir
