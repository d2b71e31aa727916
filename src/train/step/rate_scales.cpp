#include "choir/train/step/rate_scales.hpp"

#include <fmt/core.h>

#include <map>

#include "choir/core/error.hpp"
#include "choir/deck/name_patterns.hpp"

namespace choir {

std::function<double(const Parameter&)> rate_scales(const ParameterSet& parameters,
                                                    const std::vector<RateScale>& scales) {
  if (scales.empty()) return {};
  std::vector<std::string> names;
  for (const Parameter* p : parameters.all()) names.push_back(p->name);
  std::map<std::string, const RateScale*> chosen;
  for (const RateScale& scale : scales) {
    require_matches("optimizer.scale", {scale.pattern}, names);
    bool trains = false;
    for (const Parameter* p : parameters.all()) {
      if (!matches_pattern(scale.pattern, p->name)) continue;
      trains = trains || p->trainable;
      const auto [at, is_new] = chosen.emplace(p->name, &scale);
      if (!is_new)
        throw DeckError(fmt::format("optimizer.scale: '{}' and '{}' both match {}",
                                    at->second->pattern, scale.pattern, p->name),
                        "let one pattern match each parameter");
    }
    if (!trains)
      throw DeckError(
          fmt::format(
              "optimizer.scale: '{}' matches only frozen parameters, which have no learning rate",
              scale.pattern),
          "leave the pattern out, or train these parameters (train.unfreeze)");
  }
  std::map<std::string, double> factors;
  for (const auto& [name, scale] : chosen) factors[name] = scale->factor;
  return [factors](const Parameter& p) {
    const auto found = factors.find(p.tied_to != nullptr ? p.tied_to->name : p.name);
    return found == factors.end() ? 1.0 : found->second;
  };
}

}  // namespace choir
