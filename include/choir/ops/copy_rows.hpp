#pragma once
// Copies a block of rows between two strided places, for example new keys and values into a cache.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// `rows` rows of `width` elements; consecutive rows are `stride` elements apart.
struct RowBlock {
  void* data = nullptr;
  std::int64_t stride = 0;
};

void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to);

}  // namespace choir::ops
