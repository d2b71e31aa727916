#pragma once
// Depthwise convolution over time, channels last. d_x is the same convolution with the taps in
// reverse order; d_weight of a tap is the product of d_y and x shifted by it, summed over frames.
// Floor: forward 2 element transfers, backward 3; 2 K FLOP per output forward, 4 K backward.
#include "choir/ops/depthwise_conv.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void depthwise_conv_forward(const ops::DepthwiseConv& args);
template <class T>
void depthwise_conv_backward(const ops::DepthwiseConvBackward& args);
std::int64_t depthwise_conv_workspace(const Shape& x, std::int64_t taps);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void depthwise_conv_forward(const Stream& stream, const ops::DepthwiseConv& args);
CHOIR_CUDA_KERNEL void depthwise_conv_backward(const Stream& stream,
                                               const ops::DepthwiseConvBackward& args);

/// Rows are frames; the lines of sums are the taps and the bias.
inline RowSumPlan depthwise_conv_plan(const Shape& x) {
  return {x[0] * x[1], x[2], 264, 64};
}
inline std::int64_t depthwise_conv_workspace(const Shape& x, std::int64_t taps) {
  return depthwise_conv_plan(x).workspace_bytes(taps + 1);
}
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void depthwise_conv_forward(const ops::DepthwiseConv& args);
void depthwise_conv_backward(const ops::DepthwiseConvBackward& args);
}  // namespace ref

}  // namespace choir
