#include "choir/data/speech/answer_scores.hpp"

#include "choir/core/error.hpp"

namespace choir {
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
