#pragma once
// The nonlinearities and gated linear units, flat over all elements (swiglu and glu: row by row).
// With Phi and phi the normal distribution and density: gelu = x Phi(x), its derivative Phi(x) + x
// phi(x); gelu_tanh = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function (1 + tanh
// u = 2 s(2u)); silu(g) = g s(g), derivative s + g s (1 - s); alone it is Swish. Gated linear unit
// (Dauphin et al. 2017): y = a s(g), d_a = d_y s, d_g = d_y a s (1 - s). Floor per output element:
// forward 2 element transfers (gated kinds 3), backward 3 (5). About 30 FLOP, most of them in
// one exp and one division: close to bandwidth bound with wide vectors. Masking writes the masked
// rows once.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/activation.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// y [N, C] = a sigmoid(g), where rows of x [N, 2C] are [a C | g C]. Row r is frame r % tokens of
/// sample r / tokens; frames >= lengths[sample] give 0 (nullptr: no frame is masked).
void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths = nullptr, std::int64_t tokens = 1);
/// Computes d_x [N, 2C] from d_y [N, C] and the x of forward; 0 at masked frames.
void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths = nullptr,
                  std::int64_t tokens = 1);

/// Sets rows of masked frames to zero, in place: x [B*tokens, C].
void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens);

}  // namespace choir::ops

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

namespace cpu {
template <class T>
void glu_forward(const TensorView& x, const TensorView& y, const std::int32_t* lengths,
                 std::int64_t tokens);
template <class T>
void glu_backward(const TensorView& x, const TensorView& d_y, const TensorView& d_x,
                  const std::int32_t* lengths, std::int64_t tokens);
void mask_frames(const TensorView& x, const std::int32_t* lengths, std::int64_t tokens);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                                   const std::int32_t* lengths, std::int64_t tokens);
CHOIR_CUDA_KERNEL void glu_backward(const Stream& stream, const TensorView& x,
                                    const TensorView& d_y, const TensorView& d_x,
                                    const std::int32_t* lengths, std::int64_t tokens);
CHOIR_CUDA_KERNEL void mask_frames(const Stream& stream, const TensorView& x,
                                   const std::int32_t* lengths, std::int64_t tokens);
}  // namespace cuda

namespace ref {
/// f64.
void glu_forward(const TensorView& x, const TensorView& y, const std::int32_t* lengths,
                 std::int64_t tokens);
void glu_backward(const TensorView& x, const TensorView& d_y, const TensorView& d_x,
                  const std::int32_t* lengths, std::int64_t tokens);
}  // namespace ref

}  // namespace choir
