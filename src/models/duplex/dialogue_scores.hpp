#pragma once
// Scores of a duplex model in dialogues: the losses of validation sets, and the turns that it takes
// when it answers recorded users and continues after its own output, as counts over whole sets.
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
  std::int64_t dialogues = 0;  ///< first dialogues of a set that are held; 0: none, -1: all
  AgentEar* ear = nullptr;     ///< transcribes the agent; nullptr: no transcription
};

/// All members except `seconds` are sums over dialogues of all ranks.
struct DialogueSetScores {
  std::string name;
  ByTerm losses, targets;
  TurnCounts turns;
  AnswerScores heard;  ///< compared with heard_reference(), in words of spoken_words()
  double seconds = 0;  ///< time of holding them

  Validation validation(const std::vector<LossTerm>& terms) const;
  std::string to_string() const;
  DialogueSetScores& operator+=(const DialogueSetScores& other);
};

/// Collective over the mesh of the instance, with the same result on every rank. The micro-batches
/// of a set do not depend on the number of data ranks, and dialogues of a micro-batch are held
/// together. If the model is divided into stages, only losses are computed.
std::vector<DialogueSetScores> score_dialogues(ModelInstance& instance, DialogueBatches& data,
                                               DuplexBatches& batches,
                                               const DialogueOptions& options,
                                               ProgressLine* progress);

/// All sets together under the name "" first, then, if there are several, each of them.
std::vector<Validation> validations_of(const std::vector<LossTerm>& terms,
                                       const std::vector<DialogueSetScores>& sets);
/// The results of dialogues, formatted for users; empty if none was held.
std::vector<std::string> lines_of(const std::vector<DialogueSetScores>& sets);

}  // namespace choir
