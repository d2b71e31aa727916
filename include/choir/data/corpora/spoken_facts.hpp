#pragma once
// Questions about a book, spoken: a language model learns all of the facts as text, and is to
// answer by ear questions that it only ever read. Pure but for the files.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/corpora/spoken_conversations.hpp"

namespace choir {

struct SpokenFact {
  std::string question, answer;
  friend bool operator==(const SpokenFact&, const SpokenFact&) = default;
};

/// Asks about the King James Bible as `bible` prints it ("Ge1:1 In the beginning ..." a line): who
/// begat whom and whose son somebody was, where the book names one parent alone; which book comes
/// before and after another; how many chapters one has. Lower case, numbers in words, questions
/// different. Throws DataError where it has not the 66 books.
std::vector<SpokenFact> spoken_facts(std::string_view verses);

/// The questions in a keyed permutation; when all are spoken, again with other voices. A fifth of
/// them is only ever heard in validation: half of what says them is by known voices (val), half by
/// unseen ones (val_voices).
SpokenPlan spoken_facts_plan(const std::vector<SpokenFact>& facts, const SpokenOptions& options);

/// write_conversations() in which the clip follows on "Answer:", and conversations/facts.jsonl: all
/// facts as text, the question where the clip would be. How many conversations were written.
std::int64_t write_spoken_facts(const std::string& folder, const std::vector<SpokenFact>& facts);

}  // namespace choir
