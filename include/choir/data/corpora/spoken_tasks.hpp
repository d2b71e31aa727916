#pragma once
// Tasks about what is heard: digits and common words spoken, and questions whose answers need both
// the words and the question, as conversations of NeMo's and cuts of Lhotse's. Pure but for the
// files.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/corpora/spoken_conversations.hpp"

namespace choir {

/// Sixty words that everybody knows, in order.
std::span<const char* const> common_words();

/// All that can be asked of these words: repeat, reverse, last word, how many, spell the first word
/// and, where all are digits, add.
std::vector<SpokenTask> spoken_tasks_of(std::string_view words);

/// One to four digits, or one to three of sixty common words, by all voices, varied as the other
/// corpora are. A tenth of the texts is never trained on: half of what says them is by known voices
/// (val), half by unseen ones (val_voices).
SpokenPlan spoken_tasks_plan(const SpokenOptions& options);

/// write_conversations() with `prompts` different tasks for every utterance, drawn by Philox(seed).
std::int64_t write_spoken_tasks(const std::string& folder, std::uint64_t seed, int prompts = 3);

}  // namespace choir
