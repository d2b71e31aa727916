#pragma once
// Assignment of layers to the pieces of a pipeline. Embedding and head are units like layers, with
// a cost of their own, so that a large vocabulary takes layers off the last stage. Pure and local.
#include <vector>

#include "choir/models/model.hpp"

namespace choir {

/// Cuts units of cost >= 0 into `parts` consecutive non-empty ranges such that the most expensive
/// range is as cheap as possible. Among such cuts the smallest sum of squares wins (so the rest is
/// balanced too); ties are broken by the longest first range, then the longest second range, and so
/// on. Costs that differ by less than 1e-9 of the total count as equal. O(units^2 parts). Throws
/// Error for parts outside [1, units] and for costs that are negative or not finite.
std::vector<UnitRange> partition_units(const std::vector<double>& costs, int parts);

/// Returns [stages * virtual_stages]: the units of virtual stage `chunk * stages + stage`. An
/// embedding or a head that costs as much as a piece may be a piece by itself. Throws DeckError if
/// there are more virtual stages than layers.
std::vector<UnitRange> partition_layers(const UnitCosts& costs, int stages, int virtual_stages);

}  // namespace choir
