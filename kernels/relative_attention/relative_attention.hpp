#pragma once
// Helpers of relative-position attention. Positions: sin((64 a + b) f) by addition of angles from
// tables of a and b: 4 FLOP an element, tables in cache. Floors per element: queries 3 transfers (q
// twice, shifted), backward 3; unshift 1 of [T, T] and 1 of [T, 2T - 1]; the mask writes only the
// hidden elements.
#include <algorithm>

#include "choir/core/host_device.hpp"
#include "choir/ops/relative_attention.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

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
