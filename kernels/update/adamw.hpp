#pragma once
// AdamW (Loshchilov & Hutter 2019) on flat memory: one pass, no temporaries. Bias corrections and
// the decay factor are computed once, in double. The step is (lr / (1 - b1^t)) m / (sqrt(v) /
// sqrt(1 - b2^t) + eps), the decay a factor 1 - lr * decay on w beforehand. Floor: 28 bytes per
// parameter for f32 (reads w g m v, writes w m v), 30 with a 16-bit copy, 24 for bf16 masters, and
// 8 less with bf16 moments; 14 FLOP, and for bf16 masters and bf16 moments a quarter of a Philox
// call each, which is hidden behind memory accesses with wide vectors.

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/update/element_numbers.hpp"

namespace choir::ops {

/// With the values of `control` after end_step(): g = gradient * gradient_factor; m = b1 m + (1-b1)
/// g; v = b2 v + (1-b2) g^2; w -= learning_rate * scale * (m / correction1 / (sqrt(v / correction2)
/// + eps) + decay * w); copy = w in the compute dtype. Nothing is written if the step is not
/// applied.
///
/// bf16 masters are rounded at random to one of their two neighbours, so that the mean is w itself:
/// rounding to nearest would lose every update below half a bf16 step (2^-9 to 2^-8 of w). Element
/// i adds the lower 16 bits of word e % 4 of philox_at(rounding, e / 4, control->updates), where e
/// = elements.at(i), to the bits of w in f32 and keeps the upper 16.
///
/// bf16 moments are rounded in the same way, because v would stop growing below 2^-9 to 2^-8 of it:
/// m adds the lower and v the upper 16 bits of the word that moment_rounding draws in place of
/// rounding. w moves by the moments before they are rounded. Infinity and NaN stay.
struct AdamW {
  TensorView master;    ///< [n] f64, f32 or bf16
  TensorView gradient;  ///< [n] f64 with f64 masters, else f32
  TensorView m, v;      ///< [n] as the gradient, or both bf16 unless that is f64
  TensorView copy;      ///< [n] bf16 or f16; empty if the model computes with the master
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0;
  double scale = 1;                      ///< multiplies the learning rate of the control
  const StepControl* control = nullptr;  ///< device memory
  PhiloxKey rounding{};                  ///< bf16 masters only
  PhiloxKey moment_rounding{};           ///< bf16 moments only
  ElementNumbers elements{};             ///< bf16 masters or moments only
};

/// Memory traffic: 28 bytes per f32 parameter (30 with a 16-bit copy), 24 per bf16 parameter; 8
/// less with bf16 moments. Bandwidth bound.
void adamw(const Stream& stream, const AdamW& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
void adamw(const ops::AdamW& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void adamw(const Stream& stream, const ops::AdamW& args);
}  // namespace cuda

namespace ref {
/// Masters and moments are f64 or bf16, the gradient is f64; an optional copy is bf16 or f16.
void adamw(const ops::AdamW& args);
}  // namespace ref

}  // namespace choir
