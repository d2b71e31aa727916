#pragma once
// Batch normalisation (Ioffe & Szegedy 2015) over the unmasked frames of a micro-batch, channels
// last, and the running statistics after a step. Padding takes no part in the statistics. Every
// block of rows sums the differences from its own first unmasked row, and their squares, which
// gives its mean m and the sum M of squares around it without cancellation; blocks of n rows are
// joined as in Chan, Golub & LeVeque 1983: mean = sum n m / N, variance = sum (M + n (m - mean)^2)
// / N. Backward, with h = (x - mean) rstd: d_bias = sum d_y, d_weight = sum d_y h, d_x = weight
// rstd (d_y - d_bias / N - h d_weight / N). Floor per element: forward 3 element transfers
// (evaluation 2), backward 5. A channel of the running statistics is a chain of one addition per
// micro-batch, in f64; it is bound by the launch.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

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

/// Applies micro-batch after micro-batch, from the first on: running = (1 - momentum) running +
/// momentum * statistics of the micro-batch, in f64, rounded once at the end. A micro-batch of
/// fewer than two frames has no unbiased variance and changes nothing. All tensors have one type,
/// f32 or f64.
struct RunningUpdate {
  TensorView records;         ///< [M, 2, C]: mean, unbiased variance of each micro-batch
  TensorView frames;          ///< [M]: unmasked frames
  TensorView mean, variance;  ///< [C], updated
  double momentum = 0.1;
  /// Device memory. In a step that is not applied nothing changes; nullptr: always applied.
  const StepControl* control = nullptr;
};

/// Memory traffic: the records once.
void update_running_statistics(const Stream& stream, const RunningUpdate& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void batch_norm_forward(const ops::BatchNorm& args);
template <class T>
void batch_norm_backward(const ops::BatchNormBackward& args);
std::int64_t batch_norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void batch_norm_forward(const Stream& stream, const ops::BatchNorm& args);
CHOIR_CUDA_KERNEL void batch_norm_backward(const Stream& stream,
                                           const ops::BatchNormBackward& args);

/// Two lines of sums per block, and two for the totals.
inline RowSumPlan batch_norm_plan(std::int64_t rows, std::int64_t width) {
  return {rows, width, 264, 32};
}
inline std::int64_t batch_norm_workspace(std::int64_t rows, std::int64_t width) {
  return batch_norm_plan(rows, width).workspace_bytes(2, 2);
}
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void batch_norm_forward(const ops::BatchNorm& args);
void batch_norm_backward(const ops::BatchNormBackward& args);
}  // namespace ref

namespace cpu {
template <class T>
void update_running_statistics(const ops::RunningUpdate& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void update_running_statistics(const Stream& stream,
                                                 const ops::RunningUpdate& args);
}  // namespace cuda

namespace ref {
/// All tensors are f64, and the control is in host memory.
void update_running_statistics(const ops::RunningUpdate& args);
}  // namespace ref

}  // namespace choir
