#pragma once
// Helpers shared by the corpora of spoken questions: the variation and the splits of their lines,
// and the files of conversations beside the sound.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/corpora/known_corpora.hpp"

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

}  // namespace choir
