#pragma once
// Evaluation of a duplex model: dialogues with recorded users, in which the encoder processes a
// whole recording at once and the agent answers frame by frame, and their scores: the losses of
// validation sets, and the turns that the model takes, as counts over whole sets.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/dialogues/dialogue_batches.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/metrics/answer_scores.hpp"
#include "src/data/metrics/turn_taking.hpp"
#include "src/models/duplex/dialogue_transcription.hpp"
#include "src/models/duplex/duplex_batch.hpp"
#include "src/models/duplex/talker.hpp"

namespace choir {

/// The agent's output in a dialogue of T frames.
struct SaidDialogue {
  std::vector<std::int32_t> text;   ///< [T]; the first is padding
  std::vector<std::int32_t> codes;  ///< [T, K], with control codes for silence
};

class DialogueGroup {
 public:
  DialogueGroup(ModelInstance& instance, const DialogueControls& controls)
      : instance_(instance), controls_(controls) {}

  /// Collective over the tensor and context axes, whose ranks pass the same arguments and get the
  /// same result; collective over all ranks if parameters are sharded, which then call it equally
  /// often, even without rows. Each rank has the whole model. `batch`: duplex_fields in host
  /// memory; the dialogues of `rows`, with 1 to block_size + 1 `frames` each, are held together.
  /// Except for rounding, the result of a dialogue depends on its audio alone.
  std::vector<SaidDialogue> talk(const ModelBatch& batch, std::span<const std::int64_t> rows,
                                 std::span<const std::int64_t> frames);
  /// Runs in a plan the passes of the largest group of such a micro-batch.
  void rehearse(const ModelBatch& batch);

 private:
  /// Encodes the recordings of these rows to frames [B, T', C_e].
  Tensor hear(const ModelBatch& batch, std::span<const std::int64_t> rows);
  /// Frame t of each dialogue [B, C_e].
  Tensor frame_at(const Tensor& heard, std::int64_t t);

  ModelInstance& instance_;
  DialogueControls controls_;
};

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
