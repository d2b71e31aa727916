#pragma once
// LayerNorm over channels that several ranks share; each has [N, c] of [N, C]. Each direction has
// two calls, and one message between them carries two numbers per row. Forward: every rank's mean
// and sum of squares around it, gathered and joined as in Chan, Golub, LeVeque 1983 (no
// cancellation, the same bits on every rank). Backward: the two sums of the formula
// (kernels/norm/norm.hpp), summed over ranks. Floors per element: moments 1 transfer, forward 2,
// sums 2, backward 3; in addition 8 bytes per row and rank.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/norm/norm.hpp"

namespace choir::ops {

/// moments [N, 2]: for row r the mean and the sum of (x - mean)^2; f32 (f64 for f64).
void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments);

/// Every rank has the same number of channels.
struct SplitNormForward {
  TensorView x;             ///< [N, c]
  TensorView moments;       ///< [ranks, N, 2]
  TensorView weight, bias;  ///< [c]
  TensorView out;           ///< [N, c]
  TensorView mean, rstd;    ///< [N] f32 (f64 for f64), written
  double eps = 1e-5;
};
void split_norm_forward(const Stream& stream, const SplitNormForward& args);

/// With h = (x - mean) rstd and g = weight d_out: sums [N, 2] = sums over c of g and of g h.
struct SplitNormBackward {
  TensorView d_out, x;            ///< [N, c]
  TensorView weight, mean, rstd;  ///< as in forward
  TensorView sums;                ///< [N, 2]; for split_norm_backward() summed over all ranks
  std::int64_t width = 0;         ///< C
  TensorView d_x;                 ///< [N, c], overwritten
  TensorView d_weight, d_bias;    ///< [c] gradient dtype (f32, or f64), +=
  TensorView workspace;           ///< u8, split_norm_workspace bytes
};
std::int64_t split_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
/// Writes `sums` over this rank's channels; reads d_out, x, weight, mean, rstd.
void split_norm_sums(const Stream& stream, const SplitNormBackward& args);
/// Deterministic: partial sums over fixed blocks of rows are added in order.
void split_norm_backward(const Stream& stream, const SplitNormBackward& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void split_norm_moments(const TensorView& x, const TensorView& moments);
template <class T>
void split_norm_forward(const ops::SplitNormForward& args);
template <class T>
void split_norm_sums(const ops::SplitNormBackward& args);
template <class T>
void split_norm_backward(const ops::SplitNormBackward& args);
std::int64_t split_norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void split_norm_moments(const Stream& stream, const TensorView& x,
                                          const TensorView& moments);
CHOIR_CUDA_KERNEL void split_norm_forward(const Stream& stream, const ops::SplitNormForward& args);
CHOIR_CUDA_KERNEL void split_norm_sums(const Stream& stream, const ops::SplitNormBackward& args);
/// The workspace has NormBackwardPlan::workspace_bytes().
CHOIR_CUDA_KERNEL void split_norm_backward(const Stream& stream,
                                           const ops::SplitNormBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void split_norm_moments(const TensorView& x, const TensorView& moments);
void split_norm_forward(const ops::SplitNormForward& args);
void split_norm_sums(const ops::SplitNormBackward& args);
void split_norm_backward(const ops::SplitNormBackward& args);
}  // namespace ref

}  // namespace choir
