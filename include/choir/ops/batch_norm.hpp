#pragma once
// Batch normalisation (Ioffe & Szegedy 2015) over the unmasked frames of a micro-batch, channels
// last. Padding takes no part in the statistics.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Row r of x [B*tokens, C] is frame r % tokens of sample r / tokens and is unmasked below
/// lengths[sample]. Training: mean and biased variance of each channel over the n unmasked rows (0
/// rows: mean 0, variance 0); y = (x - mean) rstd weight + bias at unmasked rows, 0 elsewhere; rstd
/// = 1/sqrt(variance + eps). Evaluation: the same with the given mean and variance.
struct BatchNorm {
  TensorView x, y;          ///< [N, C]
  TensorView weight, bias;  ///< [C]
  TensorView mean, rstd;    ///< [C] f32 (f64 for f64), written
  /// [C] each, with the type of mean. Training: written; the mean and the *unbiased* variance (n /
  /// (n - 1); 0 for one row) for running statistics. Evaluation: read.
  TensorView running_mean, running_variance;
  TensorView frames;                      ///< [1], type of mean; training: n, written if not empty
  const std::int32_t* lengths = nullptr;  ///< [B] device memory; nullptr: no mask
  std::int64_t tokens = 1;
  double eps = 1e-5;
  bool training = true;
  TensorView workspace;  ///< u8, batch_norm_workspace bytes
};

struct BatchNormBackward {
  TensorView x, d_y;  ///< [N, C]; d_y at masked rows is ignored
  TensorView weight, mean, rstd;
  TensorView d_x;               ///< [N, C], overwritten, 0 at masked rows
  TensorView d_weight, d_bias;  ///< [C] gradient dtype (f32, or f64), +=; empty if frozen
  const std::int32_t* lengths = nullptr;
  std::int64_t tokens = 1;
  TensorView workspace;
};

std::int64_t batch_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
/// Deterministic: blocks of rows have a fixed size, each with its own mean and sum of squares
/// around it, and are joined in order as in Chan, Golub & LeVeque 1983: a mean far from 0 causes no
/// cancellation.
void batch_norm_forward(const Stream& stream, const BatchNorm& args);
void batch_norm_backward(const Stream& stream, const BatchNormBackward& args);

}  // namespace choir::ops
