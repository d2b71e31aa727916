#pragma once
// Partition of the column sum of bias_gradient on the GPU. It depends on the shape alone, so that
// the workspace can be planned without a GPU.
#include "choir/ops/reduce.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::cuda {

struct BiasGradientPlan {
  std::int64_t rows_per_block = 0, blocks = 0;  ///< along the rows
  std::int64_t stride = 0;                      ///< floats between partial sums

  BiasGradientPlan(std::int64_t rows, std::int64_t width) {
    // About 1056 blocks of 256 columns: eight for each of 132 multiprocessors. A block has at least
    // 32 rows, so that partial sums (8 bytes each) stay small compared with their input.
    constexpr std::int64_t kBlocks = 1056, kColumns = 256, kMinRows = 32;
    const std::int64_t tiles = (width + kColumns - 1) / kColumns;
    const std::int64_t wanted = kBlocks / (tiles < 1 ? 1 : tiles) + 1;
    const std::int64_t even = (rows + wanted - 1) / wanted;
    rows_per_block = even > kMinRows ? even : kMinRows;
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  std::int64_t workspace_bytes() const {
    return blocks * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

CHOIR_CUDA_KERNEL void bias_gradient(const Stream& stream, const TensorView& d_y,
                                     const TensorView& d_bias, const TensorView& workspace);

}  // namespace choir::cuda
