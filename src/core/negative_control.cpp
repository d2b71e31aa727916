#include "choir/core/negative_control.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {

const std::vector<std::string>& negative_control_names() {
  // In the order of the enumerators behind `none`.
  static const std::vector<std::string> kNames{
      "norm-unreduced",   "kv-unsummed",     "replicated-twice",     "mean-of-means",
      "padding-leaks",    "local-smoothing", "bias-everywhere",      "dropout-per-rank",
      "loss-unreduced",   "batch-off",       "tied-unjoined",        "tied-twice",
      "local-norm",       "slice-norm",      "slice-by-padding",     "slice-by-one",
      "stale-gather",     "groups-unsummed", "micro-batch-lost",     "micro-batch-twice",
      "layer-dropped",    "stage-loss-kept", "positions-local",      "context-unsummed",
      "copies-unsummed",  "mask-redrawn",    "inner-norm-unsummed",  "ids-by-position",
      "empty-counted",    "mask-left-out",   "statistics-unreduced", "throws-alone",
      "throws-everywhere"};
  return kNames;
}

NegativeControl negative_control_of(const std::string& name) {
  const std::vector<std::string>& names = negative_control_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw DeckError(fmt::format("there is no rule to break called '{}'", name),
                    "legal: " + join(names, ", "));
  return static_cast<NegativeControl>(found - names.begin() + 1);
}

}  // namespace choir
