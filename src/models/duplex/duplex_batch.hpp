#pragma once
// A micro-batch of dialogues of a duplex model, functions that fill it, and the conversion of
// packed dialogues to micro-batches for training and validation. Local.

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/dialogues/dialogue_batches.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/models/duplex/duplex_config.hpp"

namespace choir {

/// The fields of a micro-batch of B dialogues of T frames (BatchShape::samples and tokens) with S
/// samples of the user's audio each, all padded on the right, without memory:
///   "audio", "audio_lengths", "frame_lengths", "sample_ids"   inputs of the encoder, one row per
///                   dialogue (speech_fields)
///   "frames"        [B*T] i32: -1 - r for the row r of the encoder's frames [B*T'] that is input
///                   at this position, 0 for none; see hear_frames()
///   "text"          [B*T] i32: the agent's token that is known at the frame; padding 0
///   "text_targets"  [B*T] i32: the token of the next frame; padding -1
///   "text_weights"  [B*T] f32: weights of the targets' losses (see weigh_text); padding 0
///   "codes"         [B*T, K] i32: the agent's codes, delayed by a frame, with control codes;
///                   padding 0
///   "code_targets"  [B*T*K] i32: the codes of the next row; padding -1
///   "dialogue_ids"  [B] i64; random numbers of a row depend on it and on the seed
/// The loss of each term is its sum divided by the number of its targets of 0 or more in the global
/// batch. A target with weight 0 adds to their number, but not to the sum.
ModelBatch duplex_fields(const DuplexConfig& config, const BatchShape& shape);

/// Fills in "frames" of a whole batch: row t of a dialogue has frame t of its encoder as input, as
/// long as there are frames.
void hear_frames(const DuplexConfig& config, ModelBatch& batch);

/// The weight of each target, in rows of `frames` frames: that of its class, 1 for words, 0 for
/// targets below 0. A turn is the part between a BOS and an EOS of one row.
void weigh_text(const DuplexLoss& loss, const DialogueControls& controls, std::int64_t frames,
                std::span<const std::int32_t> targets, std::span<float> weights);

/// DeckError if dialogues of `frames` frames have more rows than the decoder has positions.
void check_dialogue_length(const DuplexConfig& config, std::int64_t frames);

/// Batches in the model's form; this object owns the fields that dialogues do not have.
class DuplexBatches {
 public:
  DuplexBatches(const DuplexConfig& config, const DialogueControls& controls);
  /// Local. The result is valid until the next call and for the life of `batch`.
  ModelBatch of(const DialogueBatch& batch);

 private:
  DuplexConfig config_;
  DialogueControls controls_;
  std::vector<std::int32_t> frames_;
  std::vector<float> weights_;
};

}  // namespace choir
