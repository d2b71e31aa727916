#pragma once
// The nonlinearity of the feed-forward layer.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// gelu is the exact (erf) form and gelu_tanh its approximation (Hendrycks & Gimpel 2016); silu is
/// x sigmoid(x), also called Swish (Ramachandran et al. 2017); swiglu is silu(gate) * up (Shazeer
/// 2020).
enum class Activation { gelu, gelu_tanh, relu, swiglu, silu };

/// Input columns per output column: 2 for swiglu, where row = [gate F | up F], else 1.
constexpr int activation_inputs(Activation kind) {
  return kind == Activation::swiglu ? 2 : 1;
}

/// y [N, F] = f(x [N, F * activation_inputs]).
void activation_forward(const Stream& stream, Activation kind, const TensorView& x,
                        const TensorView& y);
/// Computes d_x from d_y and the input x of forward. For kinds with one input, d_x may be d_y
/// itself.
void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x);

}  // namespace choir::ops
