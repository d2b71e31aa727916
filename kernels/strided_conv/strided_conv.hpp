#pragma once
// Convolution 3x3 with stride 2 over time and frequency, channels last: the first layer of the
// subsampling (one input channel) and its depthwise layers. Invalid frames are read and written as
// zeros, so that nothing depends on the padding of a batch. Every output reads 9 inputs; every
// input is read by 9/4 outputs on average. Backward gathers: an input frame of one parity is read
// by output row t or t + 1 with the middle tap, one of the other parity by both with the outer
// taps; the same applies to columns. Floor: x, y and the gradients once each; 18 FLOP per output
// forward, 36 backward. With one input channel only y (d_y) matters: forward one element transfer
// per 18 FLOP.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// y[b, t, f, c] = act(bias[c] + sum over i, j in 0..2 of weight[c, 3 i + j] x[b, 2 t + i - p, 2 f
/// + j - p, m]), where m = c, or 0 if x has one channel, and p = 1, or 2 if causal. x is 0 outside
/// of its extent and at frames >= in_lengths[b]; y is 0 at frames >= out_lengths[b]. Sizes: out =
/// (in - 1) / 2 + 1, or in / 2 + 1 if causal (rounded down), for time and frequency alike.
struct StridedConv {
  TensorView x;                               ///< [B, T, F, 1 or C]
  TensorView weight;                          ///< [C, 9]
  TensorView bias;                            ///< [C]
  TensorView y;                               ///< [B, T', F', C]
  const std::int32_t* in_lengths = nullptr;   ///< [B] device memory
  const std::int32_t* out_lengths = nullptr;  ///< [B] device memory
  bool causal = false;
  bool relu = false;  ///< act; y >= 0 afterwards, and backward reads the sign from y
};

struct StridedConvBackward {
  TensorView x, weight, y;  ///< as in forward; y only with relu
  TensorView d_y;           ///< [B, T', F', C]; not changed
  TensorView d_x;           ///< as x, overwritten; empty if not needed
  TensorView d_weight;      ///< [C, 9] gradient dtype (f32, or f64), +=; empty if frozen
  TensorView d_bias;        ///< [C] as d_weight, +=
  const std::int32_t* in_lengths = nullptr;
  const std::int32_t* out_lengths = nullptr;
  bool causal = false;
  bool relu = false;
  TensorView workspace;  ///< u8, strided_conv_workspace bytes
};

constexpr std::int64_t strided_size(std::int64_t in, bool causal) {
  return causal ? in / 2 + 1 : (in - 1) / 2 + 1;
}

std::int64_t strided_conv_workspace(const Stream& stream, const Shape& y);
void strided_conv_forward(const Stream& stream, const StridedConv& args);
/// Deterministic: partial sums over fixed blocks of rows are added in order.
void strided_conv_backward(const Stream& stream, const StridedConvBackward& args);

}  // namespace choir::ops

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
