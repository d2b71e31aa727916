#include "choir/models/trained_units.hpp"

#include <algorithm>

namespace choir {

void TrainedUnits::find(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  const auto first =
      std::find_if(all.begin(), all.end(), [](const Parameter* p) { return p->trainable; });
  // The last unit that begins no later. A unit without parameters of its own begins at the same
  // index as the next one and needs no backward.
  const auto index = static_cast<std::size_t>(first - all.begin());
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  lowest_ = std::max(0, static_cast<int>(after - begins_.begin()) - 1);
  trained_.clear();
  for (std::size_t unit = 0; unit < begins_.size(); ++unit) {
    const std::size_t end = unit + 1 < begins_.size() ? begins_[unit + 1] : all.size();
    std::int64_t numbers = 0, trained = 0;
    for (std::size_t p = begins_[unit]; p < end; ++p) {
      numbers += all[p]->count();
      if (all[p]->trainable) trained += all[p]->count();
    }
    trained_.push_back(numbers == 0 ? 1
                                    : static_cast<double>(trained) / static_cast<double>(numbers));
  }
}

double TrainedUnits::flops(const UnitCosts& costs) const {
  double sum = 0;
  for (std::size_t unit = 0; unit < costs.size(); ++unit) {
    const double weights = unit < trained_.size() ? trained_[unit] : 1;
    sum += costs[unit] * (reach(static_cast<int>(unit)) ? 2 + weights : 1);
  }
  return sum;
}

}  // namespace choir
