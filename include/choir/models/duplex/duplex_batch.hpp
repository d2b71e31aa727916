#pragma once
// A micro-batch of dialogues as a duplex model reads it, and what fills it. Local, pure.
#include <cstdint>
#include <span>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/models/duplex/duplex_config.hpp"

namespace choir {

/// The fields of a micro-batch of B dialogues of T frames (BatchShape::samples and tokens) with S
/// samples of the user's audio each, all padded on the right:
///   "audio", "audio_lengths", "frame_lengths", "sample_ids"   what an encoder reads, a row a
///   dialogue (speech_fields)
///   "frames"        [B*T] i32: -1 - r for the row r of the encoder's frames [B*T'] that is heard
///   at this place, 0 for none; see hear_frames()
///   "text"          [B*T] i32: the agent's token that is known at the frame; padding 0
///   "text_targets"  [B*T] i32: the token of the next frame; padding -1
///   "text_weights"  [B*T] f32: of the target's loss (see weigh_text); padding 0
///   "codes"         [B*T, K] i32: of the agent, delayed by a frame, with control codes; padding 0
///   "code_targets"  [B*T*K] i32: of the next row of codes; padding -1
///   "dialogue_ids"  [B] i64, what random numbers of a row are functions of, beside the seed
/// The loss of each term is its sum divided by its targets of 0 or more in the global batch; a
/// target that counts with weight 0 adds to their number, not to the sum. Without memory.
ModelBatch duplex_fields(const DuplexConfig& config, const BatchShape& shape);

/// Writes "frames" of a whole batch: every row t of a dialogue hears frame t of its encoder, as far
/// as there are any.
void hear_frames(const DuplexConfig& config, ModelBatch& batch);

/// The weight of each target, in rows of so many frames: that of its class, 1 of words, 0 of
/// targets below 0. A turn is what stands between a BOS and an EOS of one row.
void weigh_text(const DuplexLoss& loss, const DialogueControls& controls, std::int64_t frames,
                std::span<const std::int32_t> targets, std::span<float> weights);

/// DeckError where dialogues of so many frames have more rows than the decoder has positions.
void check_dialogue_length(const DuplexConfig& config, std::int64_t frames);

}  // namespace choir
