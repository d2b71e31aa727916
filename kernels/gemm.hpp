#pragma once
// C = op(A) op(B) (+ bias) (+ C), row-major, on the CPU.
//
// Shapes: A [m, k] or stored [k, m]; B [k, n] or stored [n, k]; C [m, n]; bias [n]. The three
// products of a linear layer with weight W [out, in] are Y = X W^T, dX = dY W, dW += dY^T X. Floor:
// 2 m n k FLOPs at what the library reaches from cache (two Sapphire Rapids cores: about 320 to 420
// GFLOP/s f32, 2.5 TFLOP/s bf16 with AMX tiles), or (m k + k n + m n) elements at memory bandwidth
// when one extent is small.
// Approach: f64 by CBLAS; f32, bf16 and f16 by oneDNN's matmul, whose strided tags take all four
// transpositions and whose sum post-op adds into an f32 C, so a weight gradient is one call. A
// primitive, its memory objects and its scratchpad are made on the first call of a shape and kept.
// Where it has no such product f16 (as on most processors) is converted, multiplied in f32 by
// oneDNN and rounded once. Without oneDNN f32 goes to CBLAS, and so do bf16 and f16, converted.
#include <cstdint>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;  ///< all positive
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32;   ///< of A, B and bias
  DType out = DType::f32;  ///< of C: the same, or f32 when in is bf16 or f16
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  ///< or nullptr
  void* c = nullptr;
};

/// The fastest way this build and this processor have.
void gemm_cpu(PlanCache& plans, const GemmArgs& args);
/// By CBLAS, any dtype.
void gemm_blas(PlanCache& plans, const GemmArgs& args);
using GemmFunction = void(PlanCache& plans, const GemmArgs& args);
/// bf16 or f16: operands converted whole, `product` in f32, one rounding.
void gemm_widened(PlanCache& plans, const GemmArgs& args, GemmFunction* product);
/// By oneDNN; false (nothing written) when it is absent or does not offer the product.
bool gemm_onednn(PlanCache& plans, const GemmArgs& args);
/// Whether it multiplies elements of this type on this processor.
bool onednn_offers(DType type);
/// "oneDNN 2.6.3", or nullptr when absent.
const char* onednn_version();

namespace ref {
/// The oracle: plain loops, sums in f64, one rounding.
void gemm(const GemmArgs& args);
}  // namespace ref

}  // namespace choir
