#pragma once
// Operations of relative-position attention (Dai et al. 2019, Transformer-XL) besides matrix
// products and attention itself: score(i, j) = ((q_i + u) k_j + (q_i + v) r_{i-j}) scale. The
// second term is a bias M [H, B, T, 2T - 1] of attention.hpp: element k of row i belongs to key j =
// k + i - (T - 1), so a query stride of 2T - 2 from element T - 1 on performs the shift without a
// copy.

#include <algorithm>
#include <cstdint>

#include "choir/core/host_device.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// Rows of positions: at most this many frames.
constexpr std::int64_t kMostRelativeFrames = 32768;

/// Elements of the tables of relative_positions(), in f32 or f64; `width` even.
std::int64_t relative_position_table_size(std::int64_t width);
/// Fills the tables on the host and copies them.
void make_relative_position_tables(const Stream& stream, std::int64_t width,
                                   const TensorView& tables);
/// Fills out [2T - 1, C]: row k belongs to the distance p = i - j = T - 1 - k, columns 2c: sin(p
/// f), 2c + 1: cos(p f), f = 10000^(-2c / C). f32 tables give an error of 2e-7 (two products of
/// rounded sines).
void relative_positions(const Stream& stream, const TensorView& tables, const TensorView& out);

/// Rows [N, row] begin with H*D columns of q: shifted[h, n, :] = scale (q[n, h, :] + v[h, :]),
/// then q += u.
struct RelativeQueries {
  TensorView rows;      ///< [N, >= H*D]
  TensorView content;   ///< u [H, D]
  TensorView position;  ///< v [H, D]
  TensorView shifted;   ///< [H, N, D]
  double scale = 1;
};
void relative_queries(const Stream& stream, const RelativeQueries& args);

/// Backward of relative_queries(), with d_q the gradient of q + u: d_u += its sum over rows, d_v +=
/// scale * the sum of d_shifted, then d_q += scale * d_shifted.
struct RelativeQueriesBackward {
  TensorView d_rows;                 ///< [N, >= H*D], d_q in the first columns, updated
  TensorView d_shifted;              ///< [H, N, D]
  TensorView d_content, d_position;  ///< [H, D] gradient dtype (f32, or f64), +=
  TensorView workspace;              ///< u8, relative_queries_workspace bytes
  double scale = 1;
};
std::int64_t relative_queries_workspace(const Stream& stream, std::int64_t rows,
                                        std::int64_t width);
/// Deterministic: partial sums over fixed blocks of rows, added in order.
void relative_queries_backward(const Stream& stream, const RelativeQueriesBackward& args);

/// d_scores [H, B, T, 2T - 1 or more] from the gradient of the shifted view, d_bias [B, H, T, T]; 0
/// for elements without a key.
void unshift_scores(const Stream& stream, const TensorView& d_bias, const TensorView& d_scores);

/// True if the device that the stream's device plans for computes relative_attention_backward() in
/// one kernel: a GPU, for 16 bits, up to 256 frames and heads of up to 64 whole packs of 16 bytes.
/// The implementation of `problem` is not asked.
bool relative_backward_is_one(const Stream& stream, const AttentionProblem& problem);
/// Computes attention_backward() of a bias with the relative shift, if relative_backward_is_one().
/// The gradient of the bias goes to d_scores [H, B, T, 2T - 1 or more], as unshift_scores() would
/// write it. Rows of operands and of d_scores are whole packs; `args.d_bias` is empty.
void relative_attention_backward(const Stream& stream, const AttentionBackward& args,
                                 const TensorView& d_scores);

/// The keys that a query sees. With chunk 0: from `left` before it to `right` after it; else the
/// keys of its own chunk of `chunk` frames and of the `left` chunks before it. -1: all.
struct AttentionContext {
  std::int64_t left = -1, right = -1, chunk = 0;
  bool all() const { return left < 0 && right < 0 && chunk == 0; }
};
/// Writes -inf to the elements of scores [H*B, T, 2T - 1 or more] whose key is not visible.
void mask_scores(const Stream& stream, const AttentionContext& context, const TensorView& scores);

}  // namespace choir::ops

namespace choir {

// Helpers of relative-position attention. Positions: sin((64 a + b) f) by addition of angles from
// tables of a and b: 4 FLOP an element, tables in cache. Floors per element: queries 3 transfers (q
// twice, shifted), backward 3; unshift 1 of [T, T] and 1 of [T, 2T - 1]; the mask writes only the
// hidden elements.

/// The tables have kFine rows of fine steps, then coarse ones, each row sines C/2 | cosines C/2.
constexpr std::int64_t kFinePositions = 64;
constexpr std::int64_t kCoarsePositions = ops::kMostRelativeFrames / kFinePositions;

/// Keys [first, end) visible to query i of `tokens`.
struct SeenKeys {
  std::int64_t first = 0, end = 0;
};
CHOIR_HOST_DEVICE inline SeenKeys seen_keys(const ops::AttentionContext& context, std::int64_t i,
                                            std::int64_t tokens) {
  SeenKeys seen{0, tokens};
  if (context.chunk > 0) {
    const std::int64_t chunk = i / context.chunk, last = (chunk + 1) * context.chunk;
    if (context.left >= 0 && chunk > context.left)
      seen.first = (chunk - context.left) * context.chunk;
    if (last < tokens) seen.end = last;
    return seen;
  }
  if (context.left >= 0 && i > context.left) seen.first = i - context.left;
  if (context.right >= 0 && i + context.right + 1 < tokens) seen.end = i + context.right + 1;
  return seen;
}

namespace cpu {
void relative_position_tables(std::int64_t width, const TensorView& tables);
template <class T>
void relative_positions(const TensorView& tables, const TensorView& out);
template <class T>
void relative_queries(const ops::RelativeQueries& args);
template <class T>
void relative_queries_backward(const ops::RelativeQueriesBackward& args);
std::int64_t relative_queries_workspace(std::int64_t rows, std::int64_t width);
template <class T>
void unshift_scores(const TensorView& d_bias, const TensorView& d_scores);
template <class T>
void mask_scores(const ops::AttentionContext& context, const TensorView& scores);
}  // namespace cpu

namespace cuda {
constexpr std::int64_t kMostFramesInOneKernel = 256, kWidestHeadInOneKernel = 64;
/// False, with nothing queued, if operands are not whole packs.
CHOIR_CUDA_KERNEL bool relative_attention_backward(const Stream& stream,
                                                   const ops::AttentionBackward& args,
                                                   const TensorView& d_scores);

/// Division of the sums over rows: a function of the shape alone.
struct RelativeQueriesPlan {
  std::int64_t rows_per_block = 0, blocks = 0, stride = 0;

  RelativeQueriesPlan(std::int64_t rows, std::int64_t width) {
    constexpr std::int64_t kBlocks = 528, kMinRows = 16;
    rows_per_block = std::max(kMinRows, (rows + kBlocks - 1) / kBlocks);
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  std::int64_t workspace_bytes() const {
    return blocks * 2 * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

CHOIR_CUDA_KERNEL void relative_position_tables(const Stream& stream, std::int64_t width,
                                                const TensorView& tables);
CHOIR_CUDA_KERNEL void relative_positions(const Stream& stream, const TensorView& tables,
                                          const TensorView& out);
CHOIR_CUDA_KERNEL void relative_queries(const Stream& stream, const ops::RelativeQueries& args);
CHOIR_CUDA_KERNEL void relative_queries_backward(const Stream& stream,
                                                 const ops::RelativeQueriesBackward& args);
CHOIR_CUDA_KERNEL void unshift_scores(const Stream& stream, const TensorView& d_bias,
                                      const TensorView& d_scores);
CHOIR_CUDA_KERNEL void mask_scores(const Stream& stream, const ops::AttentionContext& context,
                                   const TensorView& scores);
}  // namespace cuda

namespace ref {
/// In f64; positions directly by sin and cos.
void relative_positions(const TensorView& out);
void relative_queries(const ops::RelativeQueries& args);
void relative_queries_backward(const ops::RelativeQueriesBackward& args);
void unshift_scores(const TensorView& d_bias, const TensorView& d_scores);
void mask_scores(const ops::AttentionContext& context, const TensorView& scores);
}  // namespace ref

}  // namespace choir
