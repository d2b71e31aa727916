#pragma once
// Sums over rows with a fixed order. On the CPU: blocks of rows that depend only on the number of
// rows, a partial sum per block, partial sums added in order, so that the bits do not depend on the
// number of threads. On the GPU: a plan that divides the rows into blocks, each of which computes
// several partial sums per column; it is a function of the shape alone, so that the workspace can
// be planned without a GPU.

#include <cstdint>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

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

namespace choir::cpu {

struct RowBlocks {
  static constexpr std::int64_t kMost = 64;  ///< blocks
  std::int64_t rows = 0, rows_per_block = 0, count = 0;

  explicit RowBlocks(std::int64_t rows_in) : rows(rows_in) {
    constexpr std::int64_t kMinRows = 16;
    const std::int64_t even = (rows + kMost - 1) / kMost;
    rows_per_block = even > kMinRows ? even : kMinRows;
    count = (rows + rows_per_block - 1) / rows_per_block;
  }
  std::int64_t first(std::int64_t block) const { return block * rows_per_block; }
  std::int64_t last(std::int64_t block) const {
    const std::int64_t end = (block + 1) * rows_per_block;
    return end < rows ? end : rows;
  }
  /// Elements between partial sums: whole cache lines.
  static std::int64_t stride(std::int64_t width) { return (width + 15) / 16 * 16; }
};

/// total[c] += partials of block 0, 1, ... at column c; partial of block b at b * block_stride.
template <class A>
inline void add_partials(const A* partials, std::int64_t blocks, std::int64_t block_stride,
                         std::int64_t width, A* total) {
  const std::int64_t groups = (width + kFlatGroup - 1) / kFlatGroup;
  parallel_ranges(groups, kFlatGroup * blocks, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = last * kFlatGroup < width ? last * kFlatGroup : width;
    for_vectors<A>(first * kFlatGroup, end, [&](std::int64_t c, auto access) {
      Vec<A> sum = access.load(partials + c);
      for (std::int64_t b = 1; b < blocks; ++b) sum += access.load(partials + b * block_stride + c);
      access.store(total + c, access.load(total + c) + sum);
    });
  });
}

}  // namespace choir::cpu
