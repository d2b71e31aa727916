#pragma once
// Dialogues whose user was recorded as a whole: the encoder hears all of a recording at once, which
// for an encoder of causal chunks is the same, and then the agent says its part frame by frame.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/models/duplex/duplex_stream.hpp"

namespace choir {

/// What the agent said in a dialogue of T frames.
struct SaidDialogue {
  std::vector<std::int32_t> text;   ///< [T]; the first is padding
  std::vector<std::int32_t> codes;  ///< [T, K], codes of control among them: silence
};

class DialogueGroup {
 public:
  DialogueGroup(ModelInstance& instance, const DialogueControls& controls)
      : instance_(instance), controls_(controls) {}

  /// Collective over the tensor and context axes, whose ranks give the same and get the same; where
  /// parameters are sharded over all ranks, which then call it equally often, also without a row.
  /// The rank has the whole model. `batch`: duplex_fields in host memory, of which `rows` are held,
  /// each of so many `frames`, 1 to block_size + 1, in one group. What is said in a dialogue is,
  /// but for rounding, a function of its audio alone.
  std::vector<SaidDialogue> talk(const ModelBatch& batch, std::span<const std::int64_t> rows,
                                 std::span<const std::int64_t> frames);
  /// In a plan: as the largest group out of such a micro-batch does.
  void rehearse(const ModelBatch& batch);

 private:
  /// Frames [B, T', C_e] of the recordings of these rows.
  Tensor hear(const ModelBatch& batch, std::span<const std::int64_t> rows);
  /// Frame t of each dialogue [B, C_e].
  Tensor frame_at(const Tensor& heard, std::int64_t t);

  ModelInstance& instance_;
  DialogueControls controls_;
};

}  // namespace choir
