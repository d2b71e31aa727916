#pragma once
// The element-wise parts of Muon (Jordan et al. 2024): momentum, division by a norm, sums of two
// matrices with factors, and the step of the weights. Matrix products are those of gemm.hpp, and
// src/optim/newton_schulz.hpp joins the parts. Floors per f32 element: momentum 16 bytes (12
// without the direction; 4 less with a bf16 momentum), division 8, weighted sum 12, step 12 (14
// with a 16-bit copy); all are bandwidth bound.

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/update/element_numbers.hpp"

namespace choir::ops {

/// With the values of `control` after end_step() and g = gradient * gradient_factor: m = momentum *
/// m + (1 - momentum) * g; direction = m, or with nesterov (1 - momentum) * g + momentum * m, where
/// m is the new one. Nothing is written if the step is not applied. A bf16 momentum is rounded at
/// random like the m of AdamW (adamw.hpp), after the direction has been computed.
struct MuonMomentum {
  TensorView gradient;   ///< [n] f64 or f32
  TensorView m;          ///< [n] as the gradient, or bf16 beside f32
  TensorView direction;  ///< [n] as the gradient; may be empty
  double momentum = 0.95;
  bool nesterov = true;
  const StepControl* control = nullptr;  ///< device memory
  PhiloxKey rounding{};                  ///< bf16 momentum only
  ElementNumbers elements{};             ///< bf16 momentum only
};
void muon_momentum(const Stream& stream, const MuonMomentum& args);

/// x /= max(sqrt(square_sum), epsilon); x [n] f64 or f32, square_sum [1] f64.
void divide_by_norm(const Stream& stream, const TensorView& x, const TensorView& square_sum,
                    double epsilon);

/// out = a * x + b * y, [n] of f64 or f32; out may be x or y.
void weighted_sum(const Stream& stream, double a, const TensorView& x, double b,
                  const TensorView& y, const TensorView& out);

/// With rate = learning_rate of the control * scale: w = (1 - rate * decay) * w - rate * factor *
/// direction; copy = w in the compute dtype. Nothing is written if the step is not applied.
struct MuonStep {
  TensorView master, direction;  ///< [n] f64 or f32
  TensorView copy;               ///< [n] bf16 or f16; empty if the model computes with the master
  double scale = 1, factor = 1, decay = 0;
  const StepControl* control = nullptr;  ///< device memory
};
void muon_step(const Stream& stream, const MuonStep& args);

}  // namespace choir::ops

namespace choir::cuda {
CHOIR_CUDA_KERNEL void muon_momentum(const Stream& stream, const ops::MuonMomentum& args);
CHOIR_CUDA_KERNEL void divide_by_norm(const Stream& stream, const TensorView& x,
                                      const TensorView& square_sum, double epsilon);
CHOIR_CUDA_KERNEL void weighted_sum(const Stream& stream, double a, const TensorView& x, double b,
                                    const TensorView& y, const TensorView& out);
CHOIR_CUDA_KERNEL void muon_step(const Stream& stream, const ops::MuonStep& args);
}  // namespace choir::cuda

namespace choir::ref {
/// f64 throughout, but m may be bf16; an optional copy is bf16 or f16.
void muon_momentum(const ops::MuonMomentum& args);
void muon_step(const ops::MuonStep& args);
}  // namespace choir::ref
