#pragma once
// Copies rows that are cut into equal blocks (heads, parts for several ranks) between two layouts;
// blocks may be replicated or summed.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// A layout of blocks. Element e of block k in row r is at data + r*row_stride +
/// k/group*group_stride + k%group*stride + e (in elements).
struct BlockPlace {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t stride = 0;
  std::int64_t group = 1;
  std::int64_t group_stride = 0;
};

/// to(r, k, :) = from(r, k*terms, :) + ... + from(r, k*terms + terms - 1, :), added in this order
/// in f32 (f64 for f64). With one term the bits are copied, for any dtype. `to` does not overlap.
struct CopyBlocks {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;  ///< blocks of `to`
  std::int64_t width = 0;   ///< elements per block
  std::int64_t terms = 1;
  BlockPlace from, to;
};

void copy_blocks(const Stream& stream, const CopyBlocks& args);

}  // namespace choir::ops
