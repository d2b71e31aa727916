#pragma once
// The micro-batches of whole steps, read ahead, with the contents of each step on all ranks. The
// loss of a step is divided by the number of its targets on all ranks. With separate documents this
// number depends on the tokens, so it is known only when all micro-batches of the step have been
// read.

#include <array>
#include <cstdint>
#include <memory>

#include "choir/comm/communicator.hpp"
#include "src/data/text/batch_sources.hpp"
#include "src/data/text/documents.hpp"

namespace choir {

class StepBatches {
 public:
  /// Collective over `comm`, of whose ranks each reads other micro-batches. `source` makes
  /// `per_rank` batches with separate documents for each step. If `threaded`, a thread reads at
  /// least `ahead` micro-batches ahead, in whole steps. `window`: see count_documents().
  StepBatches(Communicator& comm, std::unique_ptr<BatchSource> source, std::int64_t per_rank,
              bool threaded, std::int64_t ahead, std::int64_t window);
  ~StepBatches();
  StepBatches(const StepBatches&) = delete;
  StepBatches& operator=(const StepBatches&) = delete;

  /// Returns the next batch, valid until the next call. Errors of the reading are thrown here and
  /// by contents(), and again on every later call.
  const Batch& next();
  /// Returns the contents of step `step`, counted from 0, on all ranks: of the step of the last
  /// call of next(), the step after it, or one of the kKept - 2 before it. Collective unless
  /// threaded.
  const DocumentCounts& contents(std::int64_t step);
  static constexpr std::int64_t kKept = 64;

  double wait_seconds() const;
  std::size_t bytes() const;  ///< memory of the slots

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
