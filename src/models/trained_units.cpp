#include "choir/models/trained_units.hpp"

#include <algorithm>

namespace choir {

void TrainedUnits::find(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  const auto first =
      std::find_if(all.begin(), all.end(), [](const Parameter* p) { return p->trainable; });
  // The last unit that begins no later; one without parameters of its own begins where the next
  // does, and needs no backward.
  const auto index = static_cast<std::size_t>(first - all.begin());
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  lowest_ = std::max(0, static_cast<int>(after - begins_.begin()) - 1);
}

}  // namespace choir
