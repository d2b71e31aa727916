#pragma once
// Many products of matrices of the same shape in one call, such as those of the heads of a layer.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

struct BatchedGemmOptions {
  bool transpose_a = false;  ///< matrices of A are stored [k, m]
  bool transpose_b = false;  ///< matrices of B are stored [n, k]
  bool accumulate = false;   ///< C += instead of C =
};

/// C[h] [m, n] = op(A[h]) [m, k] op(B[h]) [k, n] for tensors [H, rows, columns]; an A or B of rank
/// 2 is shared by all h. Types and sums as of gemm() in choir/ops/gemm.hpp. 2 H m n k FLOPs. Local.
/// One launch on a GPU; on the CPU H calls of gemm(), with the same bits.
void gemm_batched(const Stream& stream, const TensorView& a, const TensorView& b,
                  const TensorView& c, const BatchedGemmOptions& options = {});

}  // namespace choir::ops
