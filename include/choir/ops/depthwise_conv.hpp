#pragma once
// Depthwise convolution over time, channels last, as in the conformer's convolution module.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

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
