#pragma once
// Dialogues that were read become micro-batches of a duplex model, for training and validation.
#include <cstdint>
#include <vector>

#include "choir/data/dialogues/dialogue_batches.hpp"
#include "choir/models/duplex/duplex_batch.hpp"

namespace choir {

/// Batches as a model takes them; fields that dialogues do not have are made here.
class DuplexBatches {
 public:
  DuplexBatches(const DuplexConfig& config, const DialogueControls& controls);
  /// Local. Holds until the next call, and as long as `batch`.
  ModelBatch of(const DialogueBatch& batch);

 private:
  DuplexConfig config_;
  DialogueControls controls_;
  std::vector<std::int32_t> frames_;
  std::vector<float> weights_;
};

}  // namespace choir
