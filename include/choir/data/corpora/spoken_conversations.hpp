#pragma once
// What corpora of spoken questions share: how their lines are spoken and held out, and the files of
// conversations that are written beside the sound.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/corpora/known_corpora.hpp"

namespace choir {

/// What stands before a clip, and what is to be answered.
struct SpokenTask {
  std::string prompt, answer;
  friend bool operator==(const SpokenTask&, const SpokenTask&) = default;
};

/// A plan without lines. Another `version` is another corpus of the same request.
SpokenPlan spoken_plan(std::string_view corpus, int version, const SpokenOptions& options);

/// Line i of a plan: 130 to 190 words a minute, pitch 30 to 70, noise at 15 to 35 dB. What is held
/// out validates: half of it by voices that train (val), half by unseen ones (val_voices).
SpokenPlan::Line varied_line(PhiloxKey key, std::int64_t i, std::string text, bool held_out);

/// What is asked about an utterance with these words; `number` counts those of all manifests.
using TasksOf =
    std::function<std::vector<SpokenTask>(const std::string& said, std::uint64_t number)>;

/// Local. Of the manifests of a finished corpus: conversations/SPLIT.jsonl (NeMo's conversations)
/// and conversations/SPLIT_cuts.jsonl (Lhotse's cuts with the tag "context"). How many
/// conversations were written. Throws DataError, StorageError.
std::int64_t write_conversations(const std::string& folder, const TasksOf& tasks_of);

/// A line of NeMo's conversations without sound: all `asked` are turns of the user.
std::string text_conversation(const std::string& id, const std::vector<std::string>& asked,
                              const std::string& answer);

}  // namespace choir
