#pragma once
// y = a s(g), where s is the logistic function; d_a = d_y s, d_g = d_y a s (1 - s). Floor per
// output element: forward 3 element transfers, backward 5; about 30 FLOP. Masking writes the masked
// rows once.
#include "choir/ops/glu.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

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
