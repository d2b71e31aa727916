#pragma once
// Dense matrix product with the options a linear layer needs, forward and backward.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Operation on the product before it is written to C.
enum class GemmEpilogue : std::uint8_t {
  none,
  gelu_tanh,           ///< C = gelu_tanh(product)
  gelu_tanh_gradient,  ///< C = product * gelu_tanh'(pre_activation)
};

struct GemmOptions {
  bool transpose_a = false;  ///< A is stored [k, m]
  bool transpose_b = false;  ///< B is stored [n, k]
  bool accumulate = false;   ///< C += instead of C =; without an epilogue
  /// For an A of few rows, as in text generation: B is read once, at the rate of the memory. The
  /// order of the sums differs from that of products of many rows. No work queued just before may
  /// write to B, because B may already be read then.
  bool reads_b_once = false;
  TensorView bias{};  ///< [n], dtype of A, added to every row; empty for none
  GemmEpilogue epilogue = GemmEpilogue::none;
  /// [m, n], dtype of C: product + bias, written by gelu_tanh (empty: not kept), read by its
  /// gradient.
  TensorView pre_activation{};
};

/// C [m, n] = op(A) [m, k] * op(B) [k, n] (+ bias), row-major and contiguous; the leading dims of a
/// tensor of higher rank count as rows. A and B share one dtype; C has it too, or is f32 if A and B
/// are bf16 or f16 (gradients). Sums are in f32 for these two, else in the dtype itself. Linear
/// layer with weight W [out, in]: Y = gemm(X, W, transpose_b); dX = gemm(dY, W); dW += gemm(dY, X,
/// transpose_a, accumulate). Deterministic for a fixed number of threads. 2*m*n*k FLOPs. Local.
/// Epilogues are fused with the product if the device supports it; elsewhere, and for activations
/// of f32, they are the ops of activation.hpp run after it, bit for bit. If fused, the tanh of
/// 16-bit elements is accurate to 2^-11, as the library's may be.
void gemm(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c,
          const GemmOptions& options = {});

/// The library that multiplies this dtype here: "oneDNN 2.6.3 (AMX)", "OpenBLAS", "oneDNN 2.6.3 and
/// OpenBLAS" (for different forms of the product) or, if 16-bit types are widened, "oneDNN 2.6.3
/// (in f32)".
const char* gemm_library(DType dtype);

/// Bytes of device memory that all products of such a device share, in addition to their operands.
std::size_t gemm_device_bytes(DeviceKind kind);

}  // namespace choir::ops
