#pragma once
// Parameters that learn faster or slower than others: optimizer.scale.
#include <functional>
#include <string>
#include <vector>

#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Multiplies the learning rate of the parameters that a name pattern matches
/// (choir/deck/name_patterns.hpp).
struct RateScale {
  std::string pattern;
  double factor = 1;
};

/// Local, the same on every rank. The factor of each parameter by its name, 1 where no pattern
/// matches; of a copy of a tied weight that of what it is a copy of. Empty for no patterns.
/// DeckError for a pattern that matches nothing or only what is frozen, and for two that match one
/// parameter.
std::function<double(const Parameter&)> rate_scales(const ParameterSet& parameters,
                                                    const std::vector<RateScale>& scales);

}  // namespace choir
