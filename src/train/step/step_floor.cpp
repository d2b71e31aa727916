#include "choir/train/step/step_floor.hpp"

namespace choir {

StepWork update_work(const Precision& precision, std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const auto master = static_cast<double>(size_of(precision.master));
  const auto word = static_cast<double>(size_of(precision.gradient));
  const auto copy = precision.has_copy() ? static_cast<double>(size_of(precision.compute)) : 0.0;
  return {.optimizer_bytes = (2 * master + 5 * word + copy) * count, .norm_bytes = word * count};
}

double floor_seconds(const StepWork& work, const StepRates& rates) {
  return work.flops() / rates.flops_per_second + work.bytes() / rates.bytes_per_second;
}

}  // namespace choir
