#pragma once
// Depthwise convolution over time, channels last, as in the conformer's convolution module. d_x is
// the same convolution with the taps in reverse order; d_weight of a tap is the product of d_y and
// x shifted by it, summed over frames. Floor: forward 2 element transfers, backward 3; 2 K FLOP per
// output forward, 4 K backward.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

constexpr std::int64_t kWidestDepthwise = 64;

/// y[b, t, c] = bias[c] + sum over i < K of weight[c, i] x[b, t + i - left, c]; x is 0 outside [0,
/// T) and at frames >= lengths[b]; y is 0 at frames >= lengths[b]. left = (K - 1) / 2, or K - 1 if
/// causal.
struct DepthwiseConv {
  TensorView x;                           ///< [B, T, C]
  TensorView weight;                      ///< [C, K], K at most kWidestDepthwise
  TensorView bias;                        ///< [C] or empty
  TensorView y;                           ///< [B, T, C]
  const std::int32_t* lengths = nullptr;  ///< [B] device memory; nullptr: all frames are valid
  std::int64_t left = 0;
  /// Streaming: the `left` frames before x, [B, left, C]; empty: zeros.
  TensorView history;
};

struct DepthwiseConvBackward {
  TensorView x, weight;
  TensorView d_y;       ///< [B, T, C]; invalid frames are read as zeros
  TensorView d_x;       ///< [B, T, C], overwritten
  TensorView d_weight;  ///< [C, K] gradient dtype (f32, or f64), +=; empty if frozen
  TensorView d_bias;    ///< [C] or empty, +=
  const std::int32_t* lengths = nullptr;
  std::int64_t left = 0;
  TensorView workspace;  ///< u8, depthwise_conv_workspace bytes
};

/// Bytes for `x` [B, T, C] and K taps.
std::int64_t depthwise_conv_workspace(const Stream& stream, const Shape& x, std::int64_t taps);
void depthwise_conv_forward(const Stream& stream, const DepthwiseConv& args);
/// Deterministic: partial sums over fixed blocks of rows are added in order.
void depthwise_conv_backward(const Stream& stream, const DepthwiseConvBackward& args);

}  // namespace choir::ops

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
