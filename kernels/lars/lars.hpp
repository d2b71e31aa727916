#pragma once
// LARS on flat memory: one pass, no temporaries. The factors of gradient and weight are computed
// once, in double: rate * ratio * gradient_factor and rate * ratio * decay. Floor: 20 bytes per
// parameter for f32 (reads w g v, writes w v), 22 with a 16-bit copy; 6 FLOP.
#include <cmath>

#include "choir/core/philox.hpp"
#include "choir/ops/lars.hpp"
#include "kernels/cuda_kernel.hpp"

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
