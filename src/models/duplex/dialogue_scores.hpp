#pragma once
// How well a duplex model holds dialogues: the losses of validation sets, and the turns that it
// takes when it hears their users and goes on with what it said itself, as counts over whole sets.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/core/progress_line.hpp"
#include "choir/data/dialogues/dialogue_batches.hpp"
#include "choir/data/dialogues/turn_counts.hpp"
#include "choir/data/speech/answer_scores.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/duplex/agent_ear.hpp"
#include "src/models/duplex/duplex_batches.hpp"

namespace choir {

struct DialogueOptions {
  std::int64_t dialogues = 0;  ///< the first so many of a set are held; 0: none, -1: all
  AgentEar* ear = nullptr;     ///< hears what was said; nullptr: nobody does
};

/// All members but seconds are sums over dialogues of all ranks.
struct DialogueSetScores {
  std::string name;
  ByTerm losses, targets;
  TurnCounts turns;
  AnswerScores heard;  ///< by heard_reference(), as spoken_words() writes words
  double seconds = 0;  ///< that holding them took

  Validation validation(const std::vector<LossTerm>& terms) const;
  std::string to_string() const;
  DialogueSetScores& operator+=(const DialogueSetScores& other);
};

/// Collective over the mesh of the instance, the same on every rank. A set goes through the model
/// in the same micro-batches on any number of data ranks, and dialogues of one are held together.
/// Only losses where the model is divided into stages.
std::vector<DialogueSetScores> score_dialogues(ModelInstance& instance, DialogueBatches& data,
                                               DuplexBatches& batches,
                                               const DialogueOptions& options,
                                               ProgressLine* progress);

/// All together under the name "" first, then, where there are several, each.
std::vector<Validation> validations_of(const std::vector<LossTerm>& terms,
                                       const std::vector<DialogueSetScores>& sets);
/// How dialogues went, for people; nothing where none was held.
std::vector<std::string> lines_of(const std::vector<DialogueSetScores>& sets);

}  // namespace choir
