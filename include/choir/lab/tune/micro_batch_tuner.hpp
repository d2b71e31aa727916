#pragma once
// The search for the largest micro-batch of token sequences that the memory plan allows with an
// unchanged global batch. Local.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/lab/plan/deck_variants.hpp"
#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

struct TunedMicroBatch {
  struct Row {
    std::int64_t micro = 0, accum = 0;
    double bytes = 0;
    bool fits = false;
    std::vector<std::string> changes;  ///< changes to the deck, as overrides
  };
  std::vector<Row> rows;  ///< every micro-batch that was planned, ascending
  BatchSizes was, batch;
  double memory_limit = 0;
  std::string limited_by;  ///< "memory", or another limit
  /// The changes of the largest micro-batch that fits.
  const std::vector<std::string>& changes() const;
};

/// Tries micro-batches that divide the share of a data-parallel rank. Throws DeckError, with the
/// numbers, if the smallest is too large, and for a reproducible deck, because micro-batches affect
/// its result.
TunedMicroBatch tune_micro_batch(const PlanCase& request, const DeckVariants& variants);

/// A table of the planned micro-batches.
std::string to_string(const TunedMicroBatch& tuned);

}  // namespace choir
