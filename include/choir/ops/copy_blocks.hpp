#pragma once
// Rows cut into equal blocks (heads, parts for several ranks) move between two arrangements; blocks
// may be copied several times on the way, or summed.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Where element e of block k in row r lies: data + r*row_stride + k/group*group_stride +
/// k%group*stride + e (elements).
struct BlockPlace {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t stride = 0;
  std::int64_t group = 1;
  std::int64_t group_stride = 0;
};

/// to(r, k, :) = from(r, k*terms, :) + ... + from(r, k*terms + terms - 1, :), added in this order
/// in f32 (f64 for f64). With one term the bits are copied, of any dtype. `to` does not overlap.
struct CopyBlocks {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;  ///< of `to`
  std::int64_t width = 0;   ///< of a block
  std::int64_t terms = 1;
  BlockPlace from, to;
};

void copy_blocks(const Stream& stream, const CopyBlocks& args);

}  // namespace choir::ops
