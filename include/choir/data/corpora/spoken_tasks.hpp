#pragma once
// Tasks about speech: spoken digits and common words, and questions whose answers need both the
// words and the question, as conversations of NeMo and cuts of Lhotse. Pure functions except for
// the files.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/corpora/spoken_conversations.hpp"

namespace choir {

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
