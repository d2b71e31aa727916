#pragma once
// Division of sums over rows on the GPU into blocks that each compute several partial sums per
// column: a function of the shape alone, so that the workspace can be planned without a GPU.
#include <cstdint>

namespace choir::cuda {

struct RowSumPlan {
  std::int64_t rows_per_block = 1, blocks = 0;
  std::int64_t stride = 0;  ///< floats between the partial sums of a block: whole cache lines

  /// About `wanted` blocks of at least `least` rows.
  RowSumPlan(std::int64_t rows, std::int64_t width, std::int64_t wanted, std::int64_t least) {
    const std::int64_t even = (rows + wanted - 1) / wanted;
    rows_per_block = even > least ? even : least;
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  /// Bytes for `lines` partial sums per column and block, and `more` lines in addition.
  std::int64_t workspace_bytes(std::int64_t lines, std::int64_t more = 0) const {
    return (blocks * lines + more) * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

}  // namespace choir::cuda
