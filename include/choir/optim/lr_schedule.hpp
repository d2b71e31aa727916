#pragma once
// Learning rate as a pure function of the step.
#include <cstdint>

namespace choir {

struct LrSchedule {
  enum class Kind { constant, cosine, linear, inverse_sqrt } kind = Kind::cosine;
  double peak = 1e-3;
  double floor = 0;               ///< min_lr
  std::int64_t warmup_steps = 0;  ///< linear: peak * (step + 1) / (warmup + 1), as nanoGPT
  std::int64_t decay_steps = 1;   ///< step at which cosine and linear reach the floor

  /// `step` counts from 0. inverse_sqrt: peak * sqrt(max(1, warmup) / max(1, step)), not below the
  /// floor.
  double at(std::int64_t step) const;
};

}  // namespace choir
