#include "src/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace choir {
namespace {

double cosine_left(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double tail_left(LrSchedule::Tail shape, double progress) {
  switch (shape) {
    case LrSchedule::Tail::linear:
      return 1.0 - progress;
    case LrSchedule::Tail::cosine:
      return cosine_left(progress);
    case LrSchedule::Tail::exponential:
      return 2.0 * std::exp2(-progress) - 1.0;
    case LrSchedule::Tail::minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0;
}

}  // namespace

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (kind == Kind::constant) return peak;
  if (kind == Kind::inverse_sqrt) {
    const auto from = static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
    const auto now = static_cast<double>(std::max<std::int64_t>(1, step));
    return std::max(floor, peak * std::sqrt(std::min(1.0, from / now)));
  }
  const std::int64_t begin = kind == Kind::wsd ? tail_begin() : warmup_steps;
  if (kind == Kind::wsd && (begin < 0 || step <= begin)) return peak;
  if (step >= decay_steps) return floor;
  const double progress =
      static_cast<double>(step - begin) / static_cast<double>(decay_steps - begin);
  double left = 0;
  if (kind == Kind::wsd)
    left = tail_left(tail, progress);
  else
    left = kind == Kind::linear ? 1.0 - progress : cosine_left(progress);
  return floor + left * (peak - floor);
}

std::int64_t LrSchedule::tail_begin() const {
  return kind == Kind::wsd && tail_steps > 0 ? decay_steps - tail_steps : -1;
}

}  // namespace choir
