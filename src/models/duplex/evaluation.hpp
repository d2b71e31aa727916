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
  /// First dialogues of each set that are held; 0: none, -1: all.
  std::vector<std::int64_t> dialogues;
  AgentEar* ear = nullptr;  ///< transcribes the agent; nullptr: no transcription
};

/// The losses of validation sets, and the turns that the model takes, as counts over whole sets.
class DuplexMeaning final : public ScoreMeaning {
 public:
  std::vector<ScoreCounter> counters() const override;
  /// The sentence is empty if no dialogue was held.
  std::string describe(const Scores& scores, Validation& to) const override;
  std::string describe_tag(const Scores& scores, const std::string& tag,
                           Validation& to) const override;
};

/// A dialogue that was held, and its reference.
struct HeldDialogue {
  SpeechRow row;
  std::vector<std::int32_t> channel;  ///< the agent's text of the reference
  SaidDialogue said;
};

/// Dialogues of a micro-batch are held together. If the model is divided into stages, only losses
/// are computed.
class DuplexScorer final : public SetScorer {
 public:
  /// Everything referred to must outlive this.
  DuplexScorer(ModelInstance& instance, DialogueBatches& data, DuplexBatches& batches,
               const DialogueOptions& options)
      : instance_(instance),
        data_(data),
        batches_(batches),
        options_(options),
        group_(instance, data.form().controls) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return data_.user().eval_sets(); }
  std::string name(int set) const override { return data_.user().eval_name(set); }
  std::int64_t calls(int set) const override { return data_.user().eval_calls(set); }
  void score(int set, std::int64_t call, SetSums& sums) override;
  void finish(int set, SetSums& sums) override;
  std::vector<SampleTags> tags(int set) const override;

 private:
  bool talks(int set) const;
  void hold(int set, const SpeechBatch& user, const ModelBatch& fields);
  void count(int set, const HeldDialogue& one, SetSums& sums);

  ModelInstance& instance_;
  DialogueBatches& data_;
  DuplexBatches& batches_;
  DialogueOptions options_;
  DialogueGroup group_;
  DuplexMeaning meaning_;
  std::vector<HeldDialogue> held_;  // of the current set
};

}  // namespace choir
