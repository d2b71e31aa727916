#pragma once
// C = op(A) op(B) (+ bias) (+ C), row-major; on the CPU, and on a GPU with the epilogues of
// ops/gemm.hpp fused.
//
// Shapes: A [m, k] or stored [k, m]; B [k, n] or stored [n, k]; C [m, n]; bias [n]. The three
// products of a linear layer with weight W [out, in] are Y = X W^T, dX = dY W, dW += dY^T X.
// Floor: 2 m n k FLOPs at the library's rate from cache (two Sapphire Rapids cores: about 320 to
// 420 GFLOP/s f32, 2.5 TFLOP/s bf16 with AMX tiles), or (m k + k n + m n) elements at memory
// bandwidth if one extent is small.
// Approach: f64 by CBLAS; f32, bf16 and f16 by oneDNN's matmul, whose strided tags support all four
// transpositions and whose sum post-op adds into an f32 C, so a weight gradient is one call. A
// primitive, its memory objects and its scratchpad are made on the first call of a shape and kept.
// If oneDNN has no f16 product (as on most processors), f16 is converted, multiplied in f32 by
// oneDNN and rounded once. Without oneDNN f32 is multiplied by CBLAS, and so are bf16 and f16,
// converted. Products with few rows, as in text generation, have a kernel of their own: libraries
// for large products read weights at half the memory's rate, and 16-bit weights that are converted
// first at a fifth.
#include <cstddef>
#include <cstdint>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/product.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;  ///< all positive
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32;   ///< type of A, B and bias
  DType out = DType::f32;  ///< type of C: the same, or f32 if `in` is bf16 or f16
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  ///< nullptr: none
  void* c = nullptr;

  bool reads_b_once = false;  ///< see ops::GemmOptions

  // Only for gemm_cuda() and the reference; the CPU composes them from other ops.
  ops::GemmEpilogue epilogue = ops::GemmEpilogue::none;
  void* pre_activation = nullptr;  ///< its type is out, see ops::GemmOptions

  // Plain products of many matrices, only for gemm_cuda(); the other functions compute them one by
  // one.
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements between matrices

  /// The product of only the h-th matrices.
  GemmArgs matrix(std::int64_t h) const {
    const auto at = [h](const void* base, std::int64_t stride, DType type) {
      return static_cast<const std::byte*>(base) +
             static_cast<std::size_t>(h * stride) * size_of(type);
    };
    GemmArgs one = *this;
    one.batch = 1;
    one.a = at(a, stride_a, in), one.b = at(b, stride_b, in);
    one.c = const_cast<std::byte*>(at(c, stride_c, out));
    return one;
  }
};

ops::Product product_of(const GemmArgs& args);
/// Records the product on a device that only counts: see ops::ProductsAsked.
void note_product(const Stream& stream, const GemmArgs& args);
/// Counts one call on a stream, and writes it into the journal of a planned step.
void count_product(const Stream& stream, const GemmArgs& args, double bytes);

/// The fastest implementation of this build on this processor.
void gemm_cpu(PlanCache& plans, const GemmArgs& args);
/// The `batch` products of `args`. If there are enough for all threads, each is computed by one
/// thread, with the bits of a single-threaded product; else one after the other.
void gemm_batched_cpu(PlanCache& plans, const GemmArgs& args);
/// Throws std::bad_alloc if memory for this many simultaneous OpenBLAS buffers is refused. OpenBLAS
/// maps 128 MiB of addresses for each thread that multiplies at the same time as others, and keeps
/// them; if the system refuses, it retries forever. To be called before this many threads multiply
/// for the first time.
void require_blas_buffers(int buffers);
/// Product by CBLAS, any dtype.
void gemm_blas(PlanCache& plans, const GemmArgs& args);
using GemmFunction = void(PlanCache& plans, const GemmArgs& args);
/// Product of bf16 or f16: operands are converted as a whole, `product` multiplies in f32, and the
/// result is rounded once.
void gemm_widened(PlanCache& plans, const GemmArgs& args, GemmFunction* product);
/// Up to this many rows the work on A is negligible beside reading B.
inline constexpr std::int64_t kFewRows = 8;
/// Y = X W^T of few rows X in f32, bf16 or f16, sums in f32: bound by reading W, once and without a
/// copy. An element is the same sum whatever the number of rows and threads. Returns false, with
/// nothing written, for other products.
bool gemm_few_rows(PlanCache& plans, const GemmArgs& args);
/// Product by oneDNN; returns false, with nothing written, if oneDNN is absent or does not support
/// it.
bool gemm_onednn(PlanCache& plans, const GemmArgs& args);
/// True if oneDNN multiplies elements of this type on this processor.
bool onednn_offers(DType type);
/// "oneDNN 2.6.3", or nullptr if absent.
const char* onednn_version();

/// Device memory shared by the products of one device: the size that cuBLASLt needs on Hopper.
inline constexpr std::size_t kGemmCudaWorkspace = std::size_t{32} << 20;
/// Product on the stream of a cuda device, in one call, f32 sums; bf16, f16, and f32 in true f32.
/// Throws for f64, and for products that gemm_cuda_offers() refuses. Allocates on the first call of
/// a device and plans on the first of a shape; after that it only queues. One stream per device.
void gemm_cuda(const Stream& stream, const GemmArgs& args);
/// True if a single call computes this: always for a plain product, for an epilogue if the library
/// supports it.
bool gemm_cuda_offers(const Stream& stream, const GemmArgs& args);
// Implementations of the functions of ops/product.hpp on a cuda device.
std::vector<double> time_cuda_proposals(const Stream& stream, const ops::Product& product);
void choose_cuda_products(Device& device, const ops::ProductChoices& choices);
std::string cuda_product_library();

namespace cuda {
/// Like gemm_few_rows() on the CPU, for up to 4 rows that are whole packs of 16 bytes.
CHOIR_CUDA_KERNEL bool gemm_few_rows(const Stream& stream, const GemmArgs& args);
}  // namespace cuda

namespace ref {
/// The reference: plain loops, sums in f64, one rounding. Epilogues use the unrounded product, and
/// sums use the unrounded C.
void gemm(const GemmArgs& args);
}  // namespace ref

}  // namespace choir
