#pragma once
// The steps of one layout of `choir verify` on this rank: an engine on a mesh that is there, and
// its data.
#include <memory>

#include "choir/core/negative_control.hpp"
#include "choir/train/engine/engine.hpp"
#include "choir/train/engine/workplace.hpp"
#include "choir/train/step_planner.hpp"
#include "choir/train/synthetic/synthetic_batches.hpp"
#include "choir/train/verify/verify_layout.hpp"

namespace choir {

/// The deck in that layout. Local. Throws DeckError.
Deck laid_out(const Deck& deck, const VerifyLayout& layout);

class LaidOutRun {
 public:
  /// Collective over the mesh of `place`, which it borrows, as are all functions; `deck` from
  /// laid_out().
  LaidOutRun(const Deck& deck, Workplace& place, NegativeControl control);
  Engine& engine() { return engine_; }
  StepResult step(std::int64_t step);

 private:
  std::int64_t places() const;
  std::int64_t micro_batches() const;
  std::int64_t empty_ones() const;
  std::int64_t index_of(std::int64_t step, std::int64_t j) const;
  ModelBatch micro_batch(std::int64_t step, std::int64_t j);
  double valid_tokens(std::int64_t step) const;

  int data_ranks_, data_rank_;
  std::int64_t micro_batches_;  // 0: what the layout makes of them
  EngineOptions options_;
  std::unique_ptr<SyntheticBatches> batches_;
  StepPlan plan_;
  Engine engine_;
  bool throws_;
  PhaseClock clock_;
};

}  // namespace choir
