#pragma once
// Batch normalisation (Ioffe & Szegedy 2015) over the frames of a micro-batch that count, channels
// last. Padding takes no part in the statistics.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Row r of x [B*tokens, C] is frame r % tokens of sample r / tokens and counts below
/// lengths[sample]. Training: mean and biased variance of each channel over the n rows that count
/// (0 rows: mean 0, variance 0), y = (x - mean) rstd weight + bias at rows that count, 0 elsewhere,
/// rstd = 1/sqrt(variance + eps). Evaluation: with the given mean and variance.
struct BatchNorm {
  TensorView x, y;          ///< [N, C]
  TensorView weight, bias;  ///< [C]
  TensorView mean, rstd;    ///< [C] f32 (f64 for f64), written
  /// [C] each, as mean. Training: written, the mean, the *unbiased* variance (n / (n - 1); of one
  /// row 0) for running statistics. Evaluation: read.
  TensorView running_mean, running_variance;
  TensorView frames;                      ///< [1] as mean; training: n, written where wanted
  const std::int32_t* lengths = nullptr;  ///< [B] device memory; nullptr: all count
  std::int64_t tokens = 1;
  double eps = 1e-5;
  bool training = true;
  TensorView workspace;  ///< u8, batch_norm_workspace bytes
};

struct BatchNormBackward {
  TensorView x, d_y;  ///< [N, C]; d_y at rows that do not count is ignored
  TensorView weight, mean, rstd;
  TensorView d_x;               ///< [N, C], overwritten, 0 at rows that do not count
  TensorView d_weight, d_bias;  ///< [C] gradient dtype (f32, or f64), +=; empty when frozen
  const std::int32_t* lengths = nullptr;
  std::int64_t tokens = 1;
  TensorView workspace;
};

std::int64_t batch_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
/// Deterministic: blocks of rows of a fixed size, each with its own mean and sum of squares around
/// it, joined in order as Chan, Golub & LeVeque 1983 do: a mean far from 0 cancels nothing.
void batch_norm_forward(const Stream& stream, const BatchNorm& args);
void batch_norm_backward(const Stream& stream, const BatchNormBackward& args);

}  // namespace choir::ops
