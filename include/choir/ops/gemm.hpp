#pragma once
// Dense matrix product with the options a linear layer needs, forward and backward.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

struct GemmOptions {
  bool transpose_a = false;  ///< A is stored [k, m]
  bool transpose_b = false;  ///< B is stored [n, k]
  bool accumulate = false;   ///< C += instead of C =
  TensorView bias{};         ///< [n], dtype of A, added to every row; empty for none
};

/// C [m, n] = op(A) [m, k] * op(B) [k, n] (+ bias), row-major and contiguous; the leading dims of a
/// tensor of higher rank count as rows. A and B share one dtype; C has it too, or is f32 when A and
/// B are bf16 or f16 (gradients). Sums in f32 for these two, else in the dtype itself. Linear layer
/// with weight W [out, in]: Y = gemm(X, W, transpose_b); dX = gemm(dY, W); dW += gemm(dY, X,
/// transpose_a, accumulate). Deterministic for a fixed number of threads. 2*m*n*k FLOPs. Local.
void gemm(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c,
          const GemmOptions& options = {});

/// "oneDNN 2.6.3 (AMX)", "OpenBLAS" or, where 16 bits are widened for it, "oneDNN 2.6.3 (in f32)":
/// what runs a product of this dtype here.
const char* gemm_library(DType dtype);

}  // namespace choir::ops
