#pragma once
// Scores of generated texts against reference texts, as counts over a corpus. Pure.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "choir/data/speech/bleu.hpp"
#include "choir/data/speech/edit_distance.hpp"

namespace choir {

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
