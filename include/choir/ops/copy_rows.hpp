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

/// `further`, not nullptr: so many times `width` elements behind `to`, a number in memory of the
/// cuda device.
void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to, const std::int32_t* further = nullptr);

}  // namespace choir::ops
