#pragma once
// Which layers each piece of a pipeline gets. Embedding and head are units like layers, with a cost
// of their own, so that a large vocabulary takes layers off the last stage. Pure and local.
#include <vector>

#include "choir/models/units.hpp"

namespace choir {

/// Cuts units of cost >= 0 into `parts` consecutive non-empty ranges such that the most expensive
/// is as cheap as possible; among those cuts the one with the smallest sum of squares (the rest is
/// balanced too), among those the one whose first range is longest, then the second ... Costs that
/// differ by less than 1e-9 of the total are equal. O(units^2 parts). Throws Error for parts
/// outside [1, units] and for costs that are negative or not finite.
std::vector<UnitRange> partition_units(const std::vector<double>& costs, int parts);

/// [stages * virtual_stages]: what virtual stage `chunk * stages + stage` holds. An embedding or a
/// head that weighs as much as a piece may stand alone. Throws DeckError if there are more virtual
/// stages than layers.
std::vector<UnitRange> partition_layers(const UnitCosts& costs, int stages, int virtual_stages);

}  // namespace choir
