#pragma once
// Which layouts of N ranks fit, simplest first; with a calibration, of those the fastest first, by
// predicted targets a second. The decision ladder: as large a micro-batch as
// leaves a tenth of the memory free; data parallelism alone; the state spread over the data ranks
// (ZeRO 1, 2, 3); layers divided among tensor ranks of one node; sequences divided among context
// ranks; layers in pipeline stages; tensor ranks of several nodes. On each of them ZeRO, which
// costs messages, comes before recomputation, which costs FLOPs. Local.
//
// Nothing here knows what is legal: every combination is put to the deck's own checks, and what
// they refuse is not offered.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "choir/lab/plan/deck_variants.hpp"
#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

struct LayoutChoice {
  LayoutPlan plan;                   ///< in outline
  std::vector<std::string> changes;  ///< to the deck: "parallel.tensor=2" ...
  std::string reason;                ///< one sentence
  std::string why{};                 ///< of the fastest: what it does better than the next
};

struct LayoutSearch {
  std::vector<LayoutChoice> fitting;      ///< in that order; at most as many as asked for
  int further = 0;                        ///< legal ones behind them, of which nothing was planned
  int too_large = 0;                      ///< legal, planned, and too large however they save
  std::optional<LayoutChoice> closest{};  ///< of those that are too large
};

/// The rows a table has room for.
inline constexpr std::size_t kMostChoices = 15;

/// `request.deck` is replaced by variants. The global batch stays; micro-batches are chosen where
/// the deck names a global batch and is not reproducible (which fixes them).
LayoutSearch search_layouts(const PlanCase& request, const DeckVariants& variants,
                            std::size_t most = kMostChoices);

}  // namespace choir
