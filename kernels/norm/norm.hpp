#pragma once
// LayerNorm and RMSNorm over rows of width C; forward is fused with the preceding residual
// addition. Forward: mean, then variance of the centred row (two passes over a row that stays in
// L1), then the result. Backward, with h = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - h
// mean(g h)), dw = sum dy h, db = sum dy over rows (RMSNorm: mean = 0 and no mean(g)). Derivation:
// Ba, Kiros, Hinton 2016, appendix; Zhang & Sennrich 2019. Floor per element: forward 2 (4 with
// delta) element transfers, 8 FLOP; backward 3, or 4 with accumulation, 14 FLOP. Statistics take
// 4-8 bytes per row.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/norm.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/dropout/dropout.hpp"

namespace choir::ops {

// The end of a residual branch in the kernel of the norm behind it: the branch's dropout belongs to
// the same pass over memory. Floor per element: forward 4 transfers in place of 6, backward 5 in
// place of 6. Sums, outputs and gradients have the bits of the separate operations (in backward
// except the bias, whose partial sums are over other blocks of rows).

/// norm_forward() with sum = residual + dropout(delta). `in` and `out` of `dropout` are delta,
/// whose contents are undefined afterwards; `sum` may be delta itself.
void norm_forward(const Stream& stream, const NormForward& args, const Dropout& dropout);

/// The gradient before the dropout of a branch.
struct DroppedGradient {
  Dropout dropout;       ///< in: d_sum; out: the gradient of delta before dropout, other memory
  TensorView d_bias;     ///< [C] or empty, += the sums of the rows of `out`
  TensorView workspace;  ///< u8, dropped_norm_workspace bytes, for all sums
};
std::int64_t dropped_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
/// norm_backward(), then the dropout of d_sum. The workspace of `args` is not used.
void norm_backward(const Stream& stream, const NormBackward& args, const DroppedGradient& dropped);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void norm_forward(const ops::NormForward& args);
template <class T>
void norm_backward(const ops::NormBackward& args);
std::int64_t norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void norm_forward(const Stream& stream, const ops::NormForward& args);
/// The workspace has NormBackwardPlan::workspace_bytes().
CHOIR_CUDA_KERNEL void norm_backward(const Stream& stream, const ops::NormBackward& args);
// With dropout they return false, and do nothing, for rows that are too wide or not whole packs.
CHOIR_CUDA_KERNEL bool norm_forward(const Stream& stream, const ops::NormForward& args,
                                    const ops::Dropout& dropout);
CHOIR_CUDA_KERNEL bool norm_backward(const Stream& stream, const ops::NormBackward& args,
                                     const ops::DroppedGradient& dropped);
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void norm_forward(const ops::NormForward& args);
void norm_backward(const ops::NormBackward& args);
}  // namespace ref

}  // namespace choir

namespace choir::cuda {

// Partition of the backward pass of a norm on the GPU. It depends on the shape alone, so that the
// workspace can be planned without a GPU.

/// Number of threads that share a row of this width; each holds up to 32 columns in registers.
/// Wider rows (0) are read more than once.
constexpr int norm_threads(std::int64_t width) {
  return width <= 1024 ? 32 : width <= 4096 ? 128 : width <= 8192 ? 256 : width <= 16384 ? 512 : 0;
}

/// With dropout, rows of up to this width have half as many registers for sums, and twice as many
/// warps.
constexpr int kMostInHalfRows = 512;

struct NormBackwardPlan {
  std::int64_t rows_per_block = 0, blocks = 0;
  std::int64_t stride =
      0;  ///< floats between partial sums; each block has those of weight, then of bias
  std::int64_t lines = 2;  ///< sums per column

  NormBackwardPlan(std::int64_t rows, std::int64_t width, std::int64_t sums = 2) : lines(sums) {
    // There are as many blocks as 132 multiprocessors hold at once, with 512 threads each (256 if
    // their registers hold three sums of 32 columns). A block has enough rows that its partial sums
    // (8 bytes per column and sum, written and read) are small compared with them.
    const int threads = norm_threads(width);
    const std::int64_t resident = 132 * (lines > 2 && width > kMostInHalfRows ? 256 : 512) /
                                  (threads == 0    ? 512
                                   : threads < 128 ? 128
                                                   : threads);
    const std::int64_t least = threads == 32 ? 16 : 8, even = (rows + resident - 1) / resident;
    rows_per_block = even > least ? even : least;
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  std::int64_t workspace_bytes() const {
    return blocks * lines * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

}  // namespace choir::cuda

namespace choir::ops {

// LayerNorm and RMSNorm over channels that several ranks share; each has [N, c] of [N, C]. Each
// direction has two calls, and one message between them carries two numbers per row. Forward: every
// rank's mean and sum of squares around it, gathered and joined as in Chan, Golub, LeVeque 1983 (no
// cancellation, the same bits on every rank). Backward: the two sums of the formula
// (kernels/norm/norm.hpp), summed over ranks. RMSNorm has the mean 0 and no first sum. Where m
// ranks hold each channel, and have terms of its gradient, C counts it m times and all formulas
// hold. Floors per element: moments 1 transfer, forward 2, sums 2, backward 3; in addition 8 bytes
// per row and rank.

/// moments [N, 2]: for row r the mean and the sum of (x - mean)^2; f32 (f64 for f64).
void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments,
                        Norm kind = Norm::layernorm);

/// Every rank has the same number of channels.
struct SplitNormForward {
  TensorView x;             ///< [N, c]
  TensorView moments;       ///< [ranks, N, 2]
  TensorView weight, bias;  ///< [c]; bias may be empty
  TensorView out;           ///< [N, c]
  TensorView mean, rstd;    ///< [N] f32 (f64 for f64), written
  double eps = 1e-5;
  double offset = 0;  ///< as in NormForward
};
void split_norm_forward(const Stream& stream, const SplitNormForward& args);

/// With h = (x - mean) rstd and g = weight d_out: sums [N, 2] = sums over c of g and of g h.
struct SplitNormBackward {
  TensorView d_out, x;            ///< [N, c]
  TensorView weight, mean, rstd;  ///< as in forward
  TensorView sums;                ///< [N, 2]; for split_norm_backward() summed over all ranks
  std::int64_t width = 0;         ///< C
  TensorView d_x;                 ///< [N, c], overwritten
  TensorView d_weight, d_bias;    ///< [c] gradient dtype (f32, or f64), +=; d_bias may be empty
  TensorView workspace;           ///< u8, split_norm_workspace bytes
  Norm kind = Norm::layernorm;
  double offset = 0;  ///< as in forward
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
void split_norm_moments(const TensorView& x, const TensorView& moments, ops::Norm kind);
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
                                          const TensorView& moments, ops::Norm kind);
CHOIR_CUDA_KERNEL void split_norm_forward(const Stream& stream, const ops::SplitNormForward& args);
CHOIR_CUDA_KERNEL void split_norm_sums(const Stream& stream, const ops::SplitNormBackward& args);
/// The workspace has NormBackwardPlan::workspace_bytes().
CHOIR_CUDA_KERNEL void split_norm_backward(const Stream& stream,
                                           const ops::SplitNormBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void split_norm_moments(const TensorView& x, const TensorView& moments,
                        ops::Norm kind = ops::Norm::layernorm);
void split_norm_forward(const ops::SplitNormForward& args);
void split_norm_sums(const ops::SplitNormBackward& args);
void split_norm_backward(const ops::SplitNormBackward& args);
}  // namespace ref

}  // namespace choir
