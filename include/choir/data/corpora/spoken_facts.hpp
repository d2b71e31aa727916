#pragma once
// Spoken questions about a book: a language model learns all of the facts as text, and has to
// answer spoken questions that it has only read. Pure functions except for the files.
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

/// Questions about the King James Bible as `bible` prints it ("Ge1:1 In the beginning ..." a line):
/// who begat whom and whose son somebody was, if the book names exactly one parent; which book
/// comes before and after another; how many chapters a book has. Lower case, numbers in words, all
/// questions distinct. Throws DataError if the book does not have 66 books.
std::vector<SpokenFact> spoken_facts(std::string_view verses);

/// The questions in a keyed permutation; after the last one they are repeated with other voices. A
/// fifth of them is heard in validation only: half of these lines by known voices (val), half by
/// unseen ones (val_voices).
SpokenPlan spoken_facts_plan(const std::vector<SpokenFact>& facts, const SpokenOptions& options);

/// Runs write_conversations() with the clip after "Answer:", and writes conversations/facts.jsonl:
/// all facts as text, with the question in place of the clip. Returns the number of conversations.
std::int64_t write_spoken_facts(const std::string& folder, const std::vector<SpokenFact>& facts);

}  // namespace choir
