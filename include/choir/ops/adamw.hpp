#pragma once
// AdamW (Loshchilov & Hutter 2019) on a flat range of parameters.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// g = gradient * *gradient_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay * w); copy = w in the compute
/// dtype.
struct AdamW {
  TensorView master;    ///< [n] f32, or f64
  TensorView gradient;  ///< [n] same dtype
  TensorView m, v;      ///< [n] same dtype
  TensorView copy;      ///< [n] bf16, or empty when the master is what the model computes with
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0;
  std::int64_t step = 1;                   ///< t, from 1
  const double* gradient_scale = nullptr;  ///< device scalar: the clip factor; nullptr means 1
};

/// 28 bytes per f32 parameter (30 with a bf16 copy): bandwidth bound.
void adamw(const Stream& stream, const AdamW& args);

}  // namespace choir::ops
