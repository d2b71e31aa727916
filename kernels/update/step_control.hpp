#pragma once
// The arithmetic of step_control on one struct, shared by all devices: a handful of scalar
// operations by one thread, bound by the launch alone.

#include <cmath>

#include "choir/core/philox.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// The sums of a step over all ranks.
struct CountedLosses {
  const double* sums;    ///< [terms]
  const double* counts;  ///< [terms]; nullptr: not compared
  const double* hashes;  ///< [1]
  double ranks;          ///< number of ranks in `hashes`
  std::size_t terms;
};

/// True if a term takes no part in this step. If no term has targets, none is absent: the division
/// by 0 then shows that there was nothing to learn from.
CHOIR_HOST_DEVICE inline bool is_absent(const ops::StepControl& c, std::size_t term) {
  if (c.targets[term] != 0) return false;
  double all = 0;
  for (const double targets : c.targets) all += targets;
  return all > 0;
}

CHOIR_HOST_DEVICE inline void begin_step(ops::StepControl& c) {
  for (std::size_t t = 0; t < ops::kMostLossTerms; ++t) c.targets[t] -= c.dropped[t];
  for (std::size_t t = 0; t < ops::kMostLossTerms; ++t)
    c.loss_factors[t] = is_absent(c, t) ? 0 : c.weights[t] / c.targets[t] * c.loss_scale;
}

/// The sum is rounded once per term, so that every device gets the same bits.
CHOIR_HOST_DEVICE inline void add_up_losses(ops::StepControl& c, const double* sums,
                                            std::size_t terms) {
  c.loss = 0;
  for (std::size_t t = 0; t < terms; ++t) {
    const bool absent = is_absent(c, t);
    c.term_losses[t] = absent ? 0 : sums[t] / c.targets[t];
    if (!absent) c.loss = std::fma(c.weights[t], c.term_losses[t], c.loss);
  }
}

/// A finite number minus itself is 0; anything else is NaN.
CHOIR_HOST_DEVICE inline bool is_finite(double x) {
  return x - x == 0;
}

/// Compares the targets that the model has counted with those that the loss was divided by.
/// If the ranks' targets differ, every rank finds it, so that all of them stop: sums of unequal
/// hashes are a multiple of one of them only by an accident of 1 in 2^32.
CHOIR_HOST_DEVICE inline void compare_counts(ops::StepControl& c, const CountedLosses& losses) {
  c.miscounted = 0;
  if (losses.counts == nullptr) return;
  for (std::size_t t = losses.terms; t-- > 0;) {
    c.counted[t] = losses.counts[t];
    if (is_finite(c.targets[t]) && losses.counts[t] != c.targets[t])
      c.miscounted = static_cast<double>(t + 1);
  }
  if (*losses.hashes != losses.ranks * c.targets_hash) c.miscounted = -1;
}

CHOIR_HOST_DEVICE inline void move_loss_scale(ops::StepControl& c, double window) {
  c.good_steps = c.apply != 0 ? c.good_steps + 1 : 0;
  if (c.apply == 0 && c.loss_scale > ops::kLowestLossScale) {
    const double half = c.loss_scale / 2;
    c.loss_scale = half > ops::kLowestLossScale ? half : ops::kLowestLossScale;
  }
  if (c.good_steps >= window) {
    c.loss_scale *= 2;
    c.good_steps = 0;
  }
}

CHOIR_HOST_DEVICE inline void end_step(ops::StepControl& c, double square_sum,
                                       const CountedLosses& losses, double max_norm, double beta1,
                                       double beta2, double window) {
  constexpr double kTiny = 1e-6;  // as in PyTorch; avoids division by 0
  c.step_loss_scale = c.loss_scale;
  add_up_losses(c, losses.sums, losses.terms);
  c.gradient_norm = std::sqrt(square_sum) / c.loss_scale;
  compare_counts(c, losses);
  c.apply = is_finite(c.gradient_norm) && is_finite(c.loss) && c.miscounted == 0 ? 1 : 0;
  c.gradient_factor = 0;
  if (c.apply != 0) {
    const double ratio = max_norm / (c.gradient_norm + kTiny);
    c.gradient_factor = (max_norm > 0 && ratio < 1 ? ratio : 1.0) / c.loss_scale;
    c.updates += 1;
    c.correction1 = 1 - std::pow(beta1, c.updates);
    c.correction2 = 1 - std::pow(beta2, c.updates);
  }
  if (window > 0) move_loss_scale(c, window);
}

inline CountedLosses counted_losses(const ops::EndStep& args) {
  return {.sums = static_cast<const double*>(args.loss_sums.data),
          .counts = static_cast<const double*>(args.counts.data),
          .hashes = static_cast<const double*>(args.hashes.data),
          .ranks = static_cast<double>(args.ranks),
          .terms = static_cast<std::size_t>(args.loss_sums.count())};
}

namespace cuda {
CHOIR_CUDA_KERNEL void begin_step(const Stream& stream, ops::StepControl* control);
CHOIR_CUDA_KERNEL void end_step(const Stream& stream, const ops::EndStep& args);
}  // namespace cuda

}  // namespace choir
