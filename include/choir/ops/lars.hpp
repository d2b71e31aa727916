#pragma once
// LARS (You, Gitman & Ginsburg 2017, arXiv:1708.03888): momentum with a separate learning rate for
// every tensor.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"

namespace choir::ops {

/// The factors of the two terms of a LARS step, {ratio, ratio * decay}, in f64.
struct TrustRatios {
  TensorView weight_sums;    ///< [chunks] f64: sums of squares of parts of weights
  TensorView gradient_sums;  ///< [chunks] f64: the same of gradients, before gradient_factor
  TensorView begins;         ///< [n + 1] i64: tensor i has chunks [begins[i], begins[i + 1])
  TensorView ratios;         ///< [n, 2] f64
  double coefficient = 1e-3, decay = 0;
  double epsilon = 1e-8;                 ///< above 0
  const StepControl* control = nullptr;  ///< device memory
};

/// Definition, where |w| and |g| are the norms of each tensor and g = gradient * gradient_factor:
/// ratio = coefficient * |w| / (|g| + decay * |w| + epsilon); {1, 0} if |w| is 0, because weights
/// that begin at zero would otherwise stay there. This is Algorithm 1 of the paper with the epsilon
/// of LARC in NVIDIA Apex, where it is 1e-8, too. A gradient that consists of rounding errors of
/// norm d moves its tensor by at most rate * coefficient * |w| * d / epsilon in a step, and with
/// momentum m by 1 / (1 - m) times as much in the end; without epsilon it would be a full step in
/// the direction of the noise. The chunks of a tensor are summed in their order.
void trust_ratios(const Stream& stream, const TrustRatios& args);

/// With the values of `control` after end_step(): v = momentum * v + learning_rate * scale *
/// (ratio[0] * g + ratio[1] * w); w -= v; copy = w in the compute dtype. Nothing is written if the
/// step is not applied.
struct Lars {
  TensorView master;              ///< [n] f64 or f32
  TensorView gradient, velocity;  ///< [n] as the master
  TensorView copy;                ///< [n] bf16 or f16; empty if the model computes with the master
  double momentum = 0.9;
  double scale = 1;                      ///< multiplies the learning rate of the control
  const double* ratio = nullptr;         ///< two factors in device memory; nullptr: {1, 0}
  const StepControl* control = nullptr;  ///< device memory
};

/// Memory traffic: 20 bytes per f32 parameter (22 with a 16-bit copy). Bandwidth bound.
void lars(const Stream& stream, const Lars& args);

}  // namespace choir::ops
