#pragma once
// Corpora of spoken questions: tasks about spoken words ("Reverse the words:"), whose answers need
// both the words and the task, and questions about a book, whose answers a language model learns as
// text and has to give when it hears the question. Both vary their lines, hold out a part of them,
// and write conversations beside the sound in the same form. Pure functions except for the files.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/philox.hpp"
#include "src/data/corpora/known_corpora.hpp"

namespace choir {

/// The prompt in front of a clip, and the expected answer.
struct SpokenTask {
  std::string prompt, answer;
  friend bool operator==(const SpokenTask&, const SpokenTask&) = default;
};

/// A plan without lines. Another `version` makes another corpus of the same request.
SpokenPlan spoken_plan(std::string_view corpus, int version, const SpokenOptions& options);

/// Line i of a plan: 130 to 190 words a minute, pitch 30 to 70, noise at 15 to 35 dB. Held-out
/// lines validate: half of them by known voices (val), half by unseen ones (val_voices).
SpokenPlan::Line varied_line(PhiloxKey key, std::int64_t i, std::string text, bool held_out);

/// Returns the tasks for an utterance with these words; `number` counts the utterances of all
/// manifests.
using TasksOf =
    std::function<std::vector<SpokenTask>(const std::string& said, std::uint64_t number)>;

/// Local. Writes conversations/SPLIT.jsonl (NeMo's conversations) and
/// conversations/SPLIT_cuts.jsonl (Lhotse's cuts with the tag "context") for the manifests of a
/// finished corpus. Returns the number of conversations. Throws DataError, StorageError.
std::int64_t write_conversations(const std::string& folder, const TasksOf& tasks_of);

/// A line of NeMo's conversations without sound: all texts of `asked` are turns of the user.
std::string text_conversation(const std::string& id, const std::vector<std::string>& asked,
                              const std::string& answer);

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

/// Sixty common words, in order.
std::span<const char* const> common_words();

/// All tasks for these words: repeat, reverse, last word, how many, spell the first word and, if
/// all are digits, add.
std::vector<SpokenTask> spoken_tasks_of(std::string_view words);

/// One to four digits, or one to three of sixty common words, by all voices, varied as in the other
/// corpora. A tenth of the texts is held out: half of its lines by known voices (val), half by
/// unseen ones (val_voices).
SpokenPlan spoken_tasks_plan(const SpokenOptions& options);

/// Runs write_conversations() with `prompts` different tasks for every utterance, drawn by
/// Philox(seed).
std::int64_t write_spoken_tasks(const std::string& folder, std::uint64_t seed, int prompts = 3);

}  // namespace choir
