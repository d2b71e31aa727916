#pragma once
// C = op(A) op(B) (+ bias) (+ C), row-major; on the CPU, and on a GPU with the epilogues of
// ops/gemm.hpp fused.
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
// The few rows of a model that generates are multiplied here: libraries for large products read
// weights at half the memory's rate, and 16 bits that are converted first at a fifth.
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
  DType in = DType::f32;   ///< of A, B and bias
  DType out = DType::f32;  ///< of C: the same, or f32 when in is bf16 or f16
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  ///< or nullptr
  void* c = nullptr;

  bool reads_b_once = false;  ///< see ops::GemmOptions

  // For gemm_cuda() and the reference only; the cpu composes them from other ops.
  ops::GemmEpilogue epilogue = ops::GemmEpilogue::none;
  void* pre_activation = nullptr;  ///< of type out, see ops::GemmOptions

  // Plain products of many matrices, for gemm_cuda(); the others take them one by one.
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements from one to the next

  /// The product of the h-th matrices alone.
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
/// On a device that only counts: see ops::ProductsAsked.
void note_product(const Stream& stream, const GemmArgs& args);
/// Counts one call on a stream, and writes it into the journal of a planned step.
void count_product(const Stream& stream, const GemmArgs& args, double bytes);

/// The fastest way this build and this processor have.
void gemm_cpu(PlanCache& plans, const GemmArgs& args);
/// The `batch` products of `args`: where there are enough for all threads each by one of them, with
/// the bits that it has on one thread; else one after the other.
void gemm_batched_cpu(PlanCache& plans, const GemmArgs& args);
/// OpenBLAS maps 128 MiB of addresses for each thread that multiplies at the same time as others,
/// and keeps them. Where the system refuses, it asks again for ever. Throws std::bad_alloc instead:
/// to be called before so many threads multiply for the first time.
void require_blas_buffers(int buffers);
/// By CBLAS, any dtype.
void gemm_blas(PlanCache& plans, const GemmArgs& args);
using GemmFunction = void(PlanCache& plans, const GemmArgs& args);
/// bf16 or f16: operands converted whole, `product` in f32, one rounding.
void gemm_widened(PlanCache& plans, const GemmArgs& args, GemmFunction* product);
/// A of up to so many rows is no work beside reading B.
inline constexpr std::int64_t kFewRows = 8;
/// Y = X W^T of few rows X in f32, bf16 or f16, sums in f32: bound by reading W, once and without a
/// copy. An element is the same sum whatever the number of rows and threads. False (nothing
/// written) for other products.
bool gemm_few_rows(PlanCache& plans, const GemmArgs& args);
/// By oneDNN; false (nothing written) when it is absent or does not offer the product.
bool gemm_onednn(PlanCache& plans, const GemmArgs& args);
/// Whether it multiplies elements of this type on this processor.
bool onednn_offers(DType type);
/// "oneDNN 2.6.3", or nullptr when absent.
const char* onednn_version();

/// Device memory shared by the products of one device: what cuBLASLt wants on Hopper.
inline constexpr std::size_t kGemmCudaWorkspace = std::size_t{32} << 20;
/// On the stream of a cuda device, in one call, f32 sums; bf16, f16, and f32 in true f32. Throws
/// for f64, and where gemm_cuda_offers() says no. Allocates on the first call of a device and plans
/// on the first of a shape; after that it only queues. One stream a device.
void gemm_cuda(const Stream& stream, const GemmArgs& args);
/// Whether there is one call for this: a plain product always, an epilogue where the library has
/// it.
bool gemm_cuda_offers(const Stream& stream, const GemmArgs& args);
// What ops/product.hpp has of these names, on a cuda device.
std::vector<double> time_cuda_proposals(const Stream& stream, const ops::Product& product);
void choose_cuda_products(Device& device, const ops::ProductChoices& choices);
std::string cuda_product_library();

namespace cuda {
/// As gemm_few_rows() of the CPU, up to 4 rows that are whole packs of 16 bytes.
CHOIR_CUDA_KERNEL bool gemm_few_rows(const Stream& stream, const GemmArgs& args);
}  // namespace cuda

namespace ref {
/// The oracle: plain loops, sums in f64, one rounding. Epilogues work on the unrounded product, and
/// sums are those of the unrounded C.
void gemm(const GemmArgs& args);
}  // namespace ref

}  // namespace choir
