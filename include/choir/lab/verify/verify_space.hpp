#pragma once
// Selection of the layouts that `choir verify` runs: all legal ones of a deck on a number of ranks,
// or a small subset in which every compatible pair of values occurs. The functions are pure and
// give the same result on every machine.
#include <cstddef>
#include <string>
#include <vector>

#include "choir/lab/verify/verify_layout.hpp"

namespace choir {

/// Returns every legal layout of up to `ranks` ranks with the values that the deck's table accepts,
/// each only where it has an effect (no schedule of one stage, no order of one axis). The batch of
/// a step is the deck's, which must be resolved for one rank; up to four micro-batch sizes that
/// divide it are used.
std::vector<VerifyLayout> legal_layouts(const Deck& deck, int ranks);

/// An order of `legal` that covers every value within the first few layouts, then every pair of
/// values that occurs in any of them as early as possible (greedy, as in AETG of Cohen et al.
/// 1997), then the rarest pairs. `pairs_at`, `values_at`: the number of layouts after which every
/// pair or value has occurred.
struct Covering {
  std::vector<VerifyLayout> layouts;
  std::size_t values_at = 0, pairs_at = 0;
};
/// Stops at `most` layouts, but not before every pair has occurred.
Covering covering_order(const std::vector<VerifyLayout>& legal, std::size_t most);

/// The layouts that a user requested: "all" (at least 150 layouts, every pair), "quick" (at least
/// 32 of them, every value), "exhaustive", "exhaustive:N" (N of them, spread evenly), or a list for
/// parse_layouts().
struct LayoutSelection {
  std::vector<VerifyLayout> layouts;  ///< consecutive layouts use the same ranks where possible
  std::string about;                  ///< "32 of 96 legal ones: every value, ..."
};
/// Chooses the layouts of `wish`. Throws DeckError for a listed layout that is not legal or has too
/// many ranks.
LayoutSelection choose_layouts(const Deck& deck, int ranks, const std::string& wish);

}  // namespace choir
