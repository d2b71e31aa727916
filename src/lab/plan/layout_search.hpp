#pragma once
// The search for layouts of N ranks that fit: the simplest first or, with a calibration, the
// fastest first, by predicted targets per second. Local.
//
// The decision ladder: data parallelism alone; the state spread over the data ranks (ZeRO 1, 2, 3);
// layers divided among tensor ranks of one node; sequences divided among context ranks; layers in
// pipeline stages; tensor ranks of several nodes. Each uses the largest micro-batch that leaves a
// tenth of the memory free. On each step, ZeRO, which costs messages, comes before recomputation,
// which costs FLOPs.
//
// The search does not know which layouts are legal: it offers only combinations that pass the
// deck's own checks.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/lab/plan/layout_plan.hpp"

namespace choir {

struct LayoutChoice {
  LayoutPlan plan;                   ///< planned in outline
  std::vector<std::string> changes;  ///< changes to the deck: "parallel.tensor=2" ...
  std::string reason;                ///< one sentence
  std::string why{};                 ///< for the fastest: its advantage over the next
};

struct LayoutSearch {
  std::vector<LayoutChoice> fitting;      ///< in that order; at most the requested number
  int further = 0;                        ///< further legal ones, which were not planned
  int too_large = 0;                      ///< legal and planned, but too large with every saving
  std::optional<LayoutChoice> closest{};  ///< the smallest of those that are too large
};

/// The number of rows that fit into a table.
inline constexpr std::size_t kMostChoices = 15;

/// Searches layouts with variants of `request.deck`. The global batch is kept; micro-batches are
/// chosen if the deck sets a global batch and is not reproducible (which fixes them).
LayoutSearch search_layouts(const PlanCase& request, const DeckVariants& variants,
                            std::size_t most = kMostChoices);

}  // namespace choir
