#pragma once
// The learning rate of a step. After the warm-up, which rises linearly:
//
//   constant       the peak
//   cosine         from the peak to the floor at decay_steps, along half a period
//   linear         the same, along a line
//   inverse_sqrt   the peak * sqrt(warmup / step), not below the floor
//   wsd            the peak, and from the peak to the floor over the last tail_steps before
//                  decay_steps (warm-up, stable, decay; Megatron-LM's WSD)
//
// All of them are pure functions of the step, so a run that is resumed needs no state for them, and
// may be resumed with other values. The last step of a run that ends at decay_steps is one before
// that step, so its rate is just above the floor.
#include <cstdint>

namespace choir {

/// The learning rate as a pure function of the step.
struct LrSchedule {
  enum class Kind { constant, cosine, linear, inverse_sqrt, wsd } kind = Kind::cosine;
  /// The fraction of peak - floor that is left after the fraction r of the tail of wsd:
  /// 1 - r, (1 + cos(pi r)) / 2, 2 * 0.5^r - 1, 1 - sqrt(r).
  enum class Tail { linear, cosine, exponential, minus_sqrt } tail = Tail::linear;
  double peak = 1e-3;
  double floor = 0;               ///< min_lr
  std::int64_t warmup_steps = 0;  ///< linear: peak * (step + 1) / (warmup + 1), as nanoGPT
  std::int64_t decay_steps = 1;   ///< step at which cosine, linear and wsd reach the floor
  std::int64_t tail_steps = 0;    ///< wsd: length of the tail; 0: the peak without end

  /// `step` counts from 0. inverse_sqrt: peak * sqrt(max(1, warmup) / max(1, step)), not below the
  /// floor. wsd (warm-up, stable, decay; as Megatron-LM after n = step updates): exactly the peak
  /// through step tail_begin(), then the tail, whatever its length: a run that has done
  /// tail_begin() steps at the peak is therefore the same for every tail.
  double at(std::int64_t step) const;

  /// The number of steps before the tail of wsd; -1 for schedules without one.
  std::int64_t tail_begin() const;
};

}  // namespace choir
