#pragma once
// Which layouts `choir verify` runs: all legal ones of a deck on so many ranks, and a small set of
// them in which every two values that go together meet. Pure functions: the same on every machine.
#include <cstddef>
#include <string>
#include <vector>

#include "choir/lab/verify/verify_layout.hpp"

namespace choir {

/// Every legal layout of up to `ranks` ranks with the values that the deck's table accepts today,
/// each only where it has an effect (no schedule of one stage, no order of one axis). The batch of
/// a step is that of the deck, which must be resolved for one rank; micro-batches are those that
/// divide it, up to four sizes.
std::vector<VerifyLayout> legal_layouts(const Deck& deck, int ranks);

/// An order of `legal` such that every value has been seen after a few, then as soon as can be
/// every pair of values that meet in any of them (greedy, as AETG of Cohen et al. 1997), then the
/// pairs seen least. `pairs_at`: after so many every pair was seen; `values_at`: every value.
struct Covering {
  std::vector<VerifyLayout> layouts;
  std::size_t values_at = 0, pairs_at = 0;
};
/// Stops at `most` layouts, but not before every pair was seen.
Covering covering_order(const std::vector<VerifyLayout>& legal, std::size_t most);

/// What a user asked for: "all" (at least 150 layouts, every pair), "quick" (at least 32 of them,
/// every value), "exhaustive", "exhaustive:N" (N of them, spread evenly), or a list for
/// parse_layouts().
struct LayoutSelection {
  std::vector<VerifyLayout> layouts;  ///< neighbours use the same ranks where possible
  std::string about;                  ///< "32 of 96 legal ones: every value, ..."
};
/// Throws DeckError for a listed layout that is not legal or has more ranks.
LayoutSelection choose_layouts(const Deck& deck, int ranks, const std::string& wish);

}  // namespace choir
