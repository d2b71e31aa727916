#pragma once
// Copies rows of any width between two strided memory areas, in the widest words that addresses,
// strides and width allow. Floor: 2 transfers. Used for key/value caches, where the launch
// dominates the cost.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/early_launch.cuh"

namespace choir::cuda {

/// Strides are in words; fewer than 2^31 words in total.
template <class Word>
__global__ void __launch_bounds__(kElementwiseThreads)
    copy_rows_kernel(std::uint32_t words, Divisor per_row, const Word* from,
                     std::int64_t from_stride, Word* to, std::int64_t to_stride,
                     const std::int32_t* further) {
  let_next_begin();
  wait_for_earlier();
  if (further != nullptr) to += std::int64_t{*further} * per_row.divisor;
  for (std::int64_t i = global_thread(); i < words; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::uint32_t column = per_row.remainder(static_cast<std::uint32_t>(i));
    to[row * to_stride + column] = from[row * from_stride + column];
  }
}

}  // namespace choir::cuda
