#pragma once
// The nonlinearity of the feed-forward layer.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// gelu is the exact (erf) form and gelu_tanh its approximation (Hendrycks & Gimpel 2016); silu is
/// x sigmoid(x), also called Swish (Ramachandran et al. 2017); swiglu is silu(gate) * up and geglu
/// gelu_tanh(gate) * up (Shazeer 2020).
enum class Activation { gelu, gelu_tanh, relu, swiglu, silu, geglu };

/// True for the gated kinds, whose rows are [gate F | up F].
constexpr bool is_gated(Activation kind) {
  return kind == Activation::swiglu || kind == Activation::geglu;
}
/// Input columns per output column.
constexpr int activation_inputs(Activation kind) {
  return is_gated(kind) ? 2 : 1;
}

/// y [N, F] = f(x [N, F * activation_inputs]).
void activation_forward(const Stream& stream, Activation kind, const TensorView& x,
                        const TensorView& y);
/// Computes d_x from d_y and the input x of forward. For kinds with one input, d_x may be d_y
/// itself.
void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x);

}  // namespace choir::ops
