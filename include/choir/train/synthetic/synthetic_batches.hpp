#pragma once
// Micro-batches that `choir verify` makes itself, as functions of their global index.
#include <cstdint>
#include <vector>

#include "choir/model/batch.hpp"

namespace choir {

class SyntheticBatches {
 public:
  virtual ~SyntheticBatches() = default;
  /// Holds until the next call.
  virtual ModelBatch micro_batch(std::int64_t index) = 0;
  /// Targets that count in micro-batches [first, first + count).
  virtual std::int64_t targets(std::int64_t first, std::int64_t count) const = 0;
  /// Speech: what a rank without work gets.
  virtual ModelBatch padding() { return {}; }
  /// Of speech, see EngineOptions::shapes.
  virtual std::vector<BatchShape> shapes() const { return {}; }
};

}  // namespace choir
