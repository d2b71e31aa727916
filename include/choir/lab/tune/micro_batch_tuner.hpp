#pragma once
// The largest micro-batch of sequences of tokens that the memory plan allows, the global batch
// being as it was. Local.
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
    std::vector<std::string> changes;  ///< to the deck, as overrides
  };
  std::vector<Row> rows;  ///< every micro-batch that was planned, ascending
  BatchSizes was, batch;
  double memory_limit = 0;
  std::string limited_by;  ///< "memory", or what else
  /// Those of the largest that fits.
  const std::vector<std::string>& changes() const;
};

/// Tries micro-batches that divide the share of a data-parallel rank. DeckError, with the numbers,
/// where the smallest is too large, and for a reproducible deck, whose micro-batches are a part of
/// its result.
TunedMicroBatch tune_micro_batch(const PlanCase& request, const DeckVariants& variants);

/// The table.
std::string to_string(const TunedMicroBatch& tuned);

}  // namespace choir
