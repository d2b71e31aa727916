#pragma once
// The nonlinearities, flat over all elements (swiglu: row by row, gate F then up F). With Phi and
// phi the normal distribution and density: gelu = x Phi(x), its derivative Phi(x) + x phi(x);
// gelu_tanh = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function (1 + tanh u = 2
// s(2u)); silu(g) = g s(g), derivative s + g s (1 - s); alone it is Swish. Floor per output
// element: forward 2 element transfers (swiglu 3), backward 3 (5). About 30 FLOP, most of them in
// one exp and one division: close to bandwidth bound with wide vectors.
#include "choir/ops/activation.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void activation_forward(ops::Activation kind, const TensorView& x, const TensorView& y);
template <class T>
void activation_backward(ops::Activation kind, const TensorView& x, const TensorView& d_y,
                         const TensorView& d_x);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void activation_forward(const Stream& stream, ops::Activation kind,
                                          const TensorView& x, const TensorView& y);
CHOIR_CUDA_KERNEL void activation_backward(const Stream& stream, ops::Activation kind,
                                           const TensorView& x, const TensorView& d_y,
                                           const TensorView& d_x);
}  // namespace cuda

namespace ref {
/// f64.
void activation_forward(ops::Activation kind, const TensorView& x, const TensorView& y);
void activation_backward(ops::Activation kind, const TensorView& x, const TensorView& d_y,
                         const TensorView& d_x);
}  // namespace ref

}  // namespace choir
