#pragma once
// Partition of the backward pass of a norm on the GPU. It depends on the shape alone, so that the
// workspace can be planned without a GPU.
#include <cstdint>

namespace choir::cuda {

/// Number of threads that share a row of this width; each holds up to 32 columns in registers.
/// Wider rows (0) are read more than once.
constexpr int norm_threads(std::int64_t width) {
  return width <= 1024 ? 32 : width <= 4096 ? 128 : width <= 8192 ? 256 : width <= 16384 ? 512 : 0;
}

struct NormBackwardPlan {
  std::int64_t rows_per_block = 0, blocks = 0;
  std::int64_t stride =
      0;  ///< floats between partial sums; each block has those of weight, then of bias

  NormBackwardPlan(std::int64_t rows, std::int64_t width) {
    // As many blocks as 132 multiprocessors hold at once, with 512 threads each. A block has enough
    // rows that its partial sums (16 bytes per column, written and read) are small compared with
    // them.
    const int threads = norm_threads(width);
    const std::int64_t resident = 132 * 512 / (threads == 0 ? 512 : threads < 128 ? 128 : threads);
    const std::int64_t least = threads == 32 ? 16 : 8, even = (rows + resident - 1) / resident;
    rows_per_block = even > least ? even : least;
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  std::int64_t workspace_bytes() const {
    return blocks * 2 * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

}  // namespace choir::cuda
