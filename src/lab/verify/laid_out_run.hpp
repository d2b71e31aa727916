#pragma once
// A run of one layout of `choir verify` on this rank: an engine on an existing mesh, and its data.
#include <memory>
#include <vector>

#include "choir/models/family.hpp"
#include "src/lab/verify/verify_layout.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/step_plan.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// Returns the deck in that layout. Local. Throws DeckError.
Deck laid_out(const Deck& deck, const VerifyLayout& layout);

/// The random micro-batches of a step in the memory of a device, where a step finds them as it
/// finds training data with data.preload = "device".
class ResidentBatches {
 public:
  ResidentBatches(Device& device, std::int64_t micro_batches);
  /// Copies micro-batch j, whose views become those of the copy. It remains until the next call for
  /// the same j, before which the step must have ended.
  void keep(std::int64_t j, ModelBatch& batch);

 private:
  struct Place {
    Buffer memory;
    std::vector<const std::byte*> rows;  ///< of all fields, one field after another
  };
  Device* device_;
  std::vector<Place> places_;  ///< by micro-batch
};

class LaidOutRun {
 public:
  /// All functions are collective over the mesh of `place`, which is borrowed. `deck` comes from
  /// laid_out().
  LaidOutRun(const Deck& deck, Workplace& place);
  Engine& engine() { return engine_; }
  StepResult step(std::int64_t step);

 private:
  std::int64_t places() const;
  std::int64_t micro_batches() const;
  std::int64_t index_of(std::int64_t step, std::int64_t j) const;
  ModelBatch micro_batch(std::int64_t step, std::int64_t j);
  ByTerm targets(std::int64_t step) const;

  int data_ranks_;
  std::int64_t micro_batches_;  // 0: as many as the layout has
  EngineOptions options_;
  std::unique_ptr<SyntheticBatches> batches_;
  std::unique_ptr<ResidentBatches> resident_;  // with data.preload = "device"
  StepPlan plan_;
  Engine engine_;
  PhaseClock clock_;
};

}  // namespace choir
