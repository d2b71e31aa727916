#pragma once
// Copies a block of rows between two strided memory areas, for example new keys and values into a
// cache.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// `rows` rows of `width` elements; consecutive rows are `stride` elements apart.
struct RowBlock {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// If `further` is not nullptr, `to` is advanced by *further times `width` elements; the number is
/// in memory of the CUDA device.
void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to, const std::int32_t* further = nullptr);

}  // namespace choir::ops
