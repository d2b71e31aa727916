#pragma once
// The decisions of one optimizer step, kept in device memory beside the gradients: norm, clip
// factor, whether the step is applied, update count, loss scale. The host queues the step without
// reading any of them; the results come back later as a copy of the whole struct.
#include <cstddef>
#include <type_traits>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Limit of the terms of a loss. A loss is a sum of terms, each with its own targets, weight and
/// factor; the limit exists because they are part of a plain struct.
inline constexpr std::size_t kMostLossTerms = 8;

/// Device memory, one per training run. f64 throughout, so that one copy moves it and every field
/// can be a scalar operand of a kernel. Only ops and copies access it; begin_step() and end_step()
/// document who writes which field.
struct StepControl {
  // Copied in by the host before each step.
  double learning_rate = 0;
  /// Per term: the number of targets that count in the global batch, and the weight in the loss.
  /// Terms that a model does not have are terms without targets.
  double targets[kMostLossTerms] = {1};
  double weights[kMostLossTerms] = {1};
  /// Per term: announced targets of this rank's micro-batches that are not in them, because rows
  /// were damaged. The ranks add them up before begin_step().
  double dropped[kMostLossTerms] = {};
  /// An integer below 2^32 that follows from `targets`, by which ranks notice that they have
  /// different ones.
  double targets_hash = 0;

  // Written by begin_step().
  /// Per term: weight / targets * loss scale, which multiplies the gradient of the sum of its
  /// losses; 0 without targets.
  double loss_factors[kMostLossTerms] = {1};

  // Written by end_step(): the results and decisions of this step.
  double loss = 0;                          ///< the sum of the terms, weighted
  double term_losses[kMostLossTerms] = {};  ///< mean over the targets of each; 0 without targets
  double gradient_norm = 0;                 ///< before clipping, without the loss scale
  double apply = 0;            ///< 1: parameters are updated; 0: loss or norm is not finite, or
                               ///< targets were counted wrongly
  double gradient_factor = 0;  ///< clip factor / loss scale: multiplies gradients in the update
  double correction1 = 1, correction2 = 1;  ///< 1 - beta^updates, for this update
  double step_loss_scale = 1;               ///< value of loss_scale in this step
  /// Per term: the number of targets that the model has used.
  double counted[kMostLossTerms] = {};
  /// 0, or 1 + the first term whose `counted` differs from its finite `targets`, or -1 if ranks
  /// have different `targets`.
  double miscounted = 0;

  // Persistent from step to step; checkpoints contain it together with the updates.
  double updates = 0;     ///< applied steps: the t of AdamW
  double loss_scale = 1;  ///< of the next step
  double good_steps = 0;  ///< applied steps since the scale last changed
};
static_assert(std::is_trivially_copyable_v<StepControl>);
/// Size of the part that the host copies in.
inline constexpr std::size_t kStepInputBytes = offsetof(StepControl, loss_factors);

/// Schedule of a dynamic loss scale: doubled after `window` applied steps in a row, halved after a
/// step that overflowed, never below kLowestLossScale. A window of 0 keeps the scale constant.
struct LossScaling {
  double start = 1;
  double window = 0;
  bool dynamic() const { return window > 0; }
};
inline constexpr double kLowestLossScale = 1;

/// targets[t] -= dropped[t]; loss_factors[t] = weights[t] / targets[t] * loss_scale. A term without
/// targets has the factor 0. If no term has targets, the loss is not finite and the step is not
/// applied.
void begin_step(const Stream& stream, StepControl* control);

struct EndStep {
  StepControl* control = nullptr;
  TensorView square_sum;  ///< [1] f64: of the gradient, times loss scale squared
  TensorView loss_sums;   ///< [terms] f64: sum of each term over its targets
  TensorView counts;      ///< [terms] f64: targets counted by the model; empty: not compared
  /// [1] f64: sum of targets_hash over `ranks` ranks; not read without counts.
  TensorView hashes;
  int ranks = 1;
  double max_norm = 0;  ///< 0: no clipping
  double beta1 = 0.9, beta2 = 0.95;
  LossScaling scaling;
};

/// term_losses[t] = loss_sums[t] / targets[t]; loss = their weighted sum; gradient_norm =
/// sqrt(square_sum) / loss_scale; apply = both are finite and no term is miscounted;
/// gradient_factor = min(1, max_norm / (gradient_norm + 1e-6)) / loss_scale, or 0 if not applied.
/// Then the update is counted and the loss scale adjusted.
void end_step(const Stream& stream, const EndStep& args);

}  // namespace choir::ops
