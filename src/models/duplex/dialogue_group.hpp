#pragma once
// Dialogues with recorded users: the encoder processes a whole recording at once, which is
// equivalent for an encoder of causal chunks, and then the agent answers frame by frame.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/models/duplex/duplex_stream.hpp"

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

}  // namespace choir
