#pragma once
// Micro-batches that `choir verify` generates, as functions of their global index.
#include <cstdint>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/models/loss_terms.hpp"

namespace choir {

class SyntheticBatches {
 public:
  /// Row r of micro-batch i has the id i * kMostRows + r, if rows have ids.
  static constexpr std::int64_t kMostRows = 3;
  virtual ~SyntheticBatches() = default;
  /// The result is valid until the next call.
  virtual ModelBatch micro_batch(std::int64_t index) = 0;
  virtual BatchShape shape(std::int64_t index) const = 0;
  /// Seconds of audio in a micro-batch, without padding.
  virtual double audio_seconds(std::int64_t) const { return 0; }
  /// Targets that are not masked in micro-batches [first, first + count).
  virtual ByTerm targets(std::int64_t first, std::int64_t count) const = 0;
  /// The micro-batch of a rank without work, if a step is counted in micro-batches.
  virtual ModelBatch padding() { return {}; }
  /// See EngineOptions::shapes; empty where the family has a fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
};

}  // namespace choir
