#pragma once
// Batch normalisation over unmasked rows. Statistics: every block of rows sums the differences from
// its own first unmasked row, and their squares, which gives its mean m and the sum M of squares
// around it without cancellation; blocks of n rows are joined as in Chan, Golub & LeVeque 1983:
// mean = sum n m / N, variance = sum (M + n (m - mean)^2) / N. Backward, with h = (x - mean) rstd:
// d_bias = sum d_y, d_weight = sum d_y h, d_x = weight rstd (d_y - d_bias / N - h d_weight / N).
// Floor per element: forward 3 element transfers (evaluation 2), backward 5.
#include "choir/ops/batch_norm.hpp"
#include "kernels/cpu/row_sum_plan.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void batch_norm_forward(const ops::BatchNorm& args);
template <class T>
void batch_norm_backward(const ops::BatchNormBackward& args);
std::int64_t batch_norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void batch_norm_forward(const Stream& stream, const ops::BatchNorm& args);
CHOIR_CUDA_KERNEL void batch_norm_backward(const Stream& stream,
                                           const ops::BatchNormBackward& args);

/// Two lines of sums per block, and two for the totals.
inline RowSumPlan batch_norm_plan(std::int64_t rows, std::int64_t width) {
  return {rows, width, 264, 32};
}
inline std::int64_t batch_norm_workspace(std::int64_t rows, std::int64_t width) {
  return batch_norm_plan(rows, width).workspace_bytes(2, 2);
}
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void batch_norm_forward(const ops::BatchNorm& args);
void batch_norm_backward(const ops::BatchNormBackward& args);
}  // namespace ref

}  // namespace choir
