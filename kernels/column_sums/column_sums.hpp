#pragma once
// Sums over rows in two stages of fixed order on the GPU. First, every block of rows leaves one
// partial sum per column in a workspace; then the partial sums of a column are added, which is
// implemented here.
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::cuda {

/// The partial sum of block b and array y is at partials + b * block_stride + y * array_stride.
struct ColumnPartials {
  const float* partials = nullptr;
  std::int64_t blocks = 0, block_stride = 0, array_stride = 0;
  std::int64_t width = 0;
  float* total[2] = {};  ///< total[y] [width] += the sum; the second may be nullptr
};

CHOIR_CUDA_KERNEL void add_partials(const Stream& stream, const ColumnPartials& partials);

}  // namespace choir::cuda
