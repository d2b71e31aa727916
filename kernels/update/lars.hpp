#pragma once
// LARS (You, Gitman & Ginsburg 2017, arXiv:1708.03888): momentum with a separate learning rate for
// every tensor; on flat memory, one pass, no temporaries. The factors of gradient and weight are
// computed once, in double: rate * ratio * gradient_factor and rate * ratio * decay. Floor: 20
// bytes per parameter for f32 (reads w g v, writes w v), 22 with a 16-bit copy; 6 FLOP.

#include <cmath>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cuda_kernel.hpp"

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

namespace choir {

/// Computes the two factors from the sums of squares of one tensor, with the same code on every
/// device. The factors are a continuous function of the gradient, so that zero and a rounding error
/// give the same result.
CHOIR_HOST_DEVICE inline void set_trust_ratio(double weights, double gradients, double factor,
                                              double coefficient, double decay, double epsilon,
                                              double* ratio) {
  const double w = std::sqrt(weights), g = std::sqrt(gradients) * factor;
  ratio[0] = w == 0 ? 1 : coefficient * w / (g + decay * w + epsilon);
  ratio[1] = w == 0 ? 0 : ratio[0] * decay;
}

namespace cpu {
void trust_ratios(const ops::TrustRatios& args);
void lars(const ops::Lars& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void trust_ratios(const Stream& stream, const ops::TrustRatios& args);
CHOIR_CUDA_KERNEL void lars(const Stream& stream, const ops::Lars& args);
}  // namespace cuda

namespace ref {
/// f64 throughout; an optional copy is bf16 or f16.
void lars(const ops::Lars& args);
}  // namespace ref

}  // namespace choir
