#pragma once
// Convolution 3x3 with stride 2, channels last. Every output reads 9 inputs; every input is read by
// 9/4 outputs on average. Backward gathers: an input frame of one parity is read by output row t or
// t + 1 with the middle tap, one of the other parity by both with the outer taps; the same applies
// to columns. Floor: x, y and the gradients once each; 18 FLOP per output forward, 36 backward.
// With one input channel only y (d_y) matters: forward one element transfer per 18 FLOP.
#include "choir/ops/strided_conv.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void strided_conv_forward(const ops::StridedConv& args);
template <class T>
void strided_conv_backward(const ops::StridedConvBackward& args);
std::int64_t strided_conv_workspace(const Shape& y);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void strided_conv_forward(const Stream& stream, const ops::StridedConv& args);
CHOIR_CUDA_KERNEL void strided_conv_backward(const Stream& stream,
                                             const ops::StridedConvBackward& args);

/// Rows are output frames; the lines of sums are 9 taps and the bias.
inline RowSumPlan strided_conv_plan(const Shape& y) {
  return {y[0] * y[1], y[3], 264, 4};
}
inline std::int64_t strided_conv_workspace(const Shape& y) {
  return strided_conv_plan(y).workspace_bytes(10);
}
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void strided_conv_forward(const ops::StridedConv& args);
void strided_conv_backward(const ops::StridedConvBackward& args);
}  // namespace ref

}  // namespace choir
