#pragma once
// Conversion of dialogues to micro-batches of a duplex model, for training and validation.
#include <cstdint>
#include <vector>

#include "choir/data/dialogues/dialogue_batches.hpp"
#include "choir/models/duplex/duplex_batch.hpp"

namespace choir {

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
