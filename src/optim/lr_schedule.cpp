#include "choir/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace choir {

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (kind == Kind::constant) return peak;
  if (kind == Kind::inverse_sqrt) {
    const auto from = static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
    const auto now = static_cast<double>(std::max<std::int64_t>(1, step));
    return std::max(floor, peak * std::sqrt(std::min(1.0, from / now)));
  }
  if (step >= decay_steps) return floor;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double left =
      kind == Kind::linear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return floor + left * (peak - floor);
}

}  // namespace choir
