#pragma once
// Factors on the learning rates of some parameters: optimizer.scale.
#include <functional>
#include <string>
#include <vector>

#include "choir/nn/parameter_set.hpp"

namespace choir {

/// A factor on the learning rate of the parameters whose names match a pattern
/// (choir/deck/name_patterns.hpp).
struct RateScale {
  std::string pattern;
  double factor = 1;
};

/// Returns the factor of each parameter: 1 if no pattern matches its name; a copy of a tied weight
/// has the factor of the original. Returns an empty function if there are no patterns. Throws
/// DeckError for a pattern that matches nothing or only frozen parameters, and if two patterns
/// match one parameter. Local, the same on every rank.
std::function<double(const Parameter&)> rate_scales(const ParameterSet& parameters,
                                                    const std::vector<RateScale>& scales);

}  // namespace choir
