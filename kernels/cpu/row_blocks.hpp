#pragma once
// Sums over rows with a fixed order: blocks of rows that depend only on the number of rows, a
// partial sum per block, partial sums added in order. The bits do not depend on the number of
// threads.
#include <cstdint>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

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
