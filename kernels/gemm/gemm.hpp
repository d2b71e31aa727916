#pragma once
// Dense matrix products with the options that a linear layer needs, forward and backward: one
// product, many of one shape, the keys by which libraries plan them, and their implementations.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// Operation on the product before it is written to C.
enum class GemmEpilogue : std::uint8_t {
  none,
  gelu_tanh,           ///< C = gelu_tanh(product)
  gelu_tanh_gradient,  ///< C = product * gelu_tanh'(pre_activation)
  gelu,                ///< C = gelu(product), the exact form
  gelu_gradient,       ///< C = product * gelu'(pre_activation)
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
  /// [m, n], dtype of C: product + bias, written by gelu_tanh and gelu (empty: not kept), read by
  /// their gradients.
  TensorView pre_activation{};
};

/// C [m, n] = op(A) [m, k] * op(B) [k, n] (+ bias), row-major and contiguous; the leading dims of a
/// tensor of higher rank count as rows. A and B share one dtype; C has it too, or is f32 if A and B
/// are bf16 or f16 (gradients). Sums are in f32 for these two, else in the dtype itself. Linear
/// layer with weight W [out, in]: Y = gemm(X, W, transpose_b); dX = gemm(dY, W); dW += gemm(dY, X,
/// transpose_a, accumulate). Deterministic for a fixed number of threads. 2*m*n*k FLOPs. Local.
/// Epilogues are fused with the product if the device supports it; elsewhere, and for activations
/// of f32, they are the ops of activation.hpp run after it, bit for bit. If fused, the tanh of
/// 16-bit elements is accurate to 2^-11, as the library's may be. The exact GELU is fused on GPUs
/// of sm_90 by a kernel of ours, which rounds the product before it is activated: its bits are
/// those of the separate ops after a product with the same sums.
void gemm(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c,
          const GemmOptions& options = {});

/// The library that multiplies this dtype here: "oneDNN 2.6.3 (AMX)", "OpenBLAS", "oneDNN 2.6.3 and
/// OpenBLAS" (for different forms of the product) or, if 16-bit types are widened, "oneDNN 2.6.3
/// (in f32)".
const char* gemm_library(DType dtype);

/// Bytes of device memory that all products of such a device share, in addition to their operands.
std::size_t gemm_device_bytes(DeviceKind kind);

// Many products of matrices of the same shape in one call, such as those of the heads of a layer.

struct BatchedGemmOptions {
  bool transpose_a = false;  ///< matrices of A are stored [k, m]
  bool transpose_b = false;  ///< matrices of B are stored [n, k]
  bool accumulate = false;   ///< C += instead of C =
};

/// C[h] [m, n] = op(A[h]) [m, k] op(B[h]) [k, n] for tensors [H, rows, columns]; an A or B of rank
/// 2 is shared by all h. Types and sums as of gemm() in kernels/gemm/gemm.hpp. 2 H m n k FLOPs.
/// Local. One launch on a GPU; on the CPU H calls of gemm(), with the same bits.
void gemm_batched(const Stream& stream, const TensorView& a, const TensorView& b,
                  const TensorView& c, const BatchedGemmOptions& options = {});

// A matrix product without the addresses of its operands: the key by which a library plans it. A
// device that only counts keeps a list of the requested products; on a GPU the algorithms that its
// library proposes for them can be timed, and one chosen for each. All local.

/// Shape, types and options of a product: see GemmOptions and BatchedGemmOptions. Plain data,
/// without pointers.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements between matrices
  DType in = DType::f32, out = DType::f32;
  GemmEpilogue epilogue = GemmEpilogue::none;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool bias = false, pre_activation = false;
  friend auto operator<=>(const Product&, const Product&) = default;

  /// Bytes of one row of an operand as it is stored.
  std::int64_t row_bytes_of_a() const { return row(transpose_a ? m : k, in); }
  std::int64_t row_bytes_of_b() const { return row(transpose_b ? k : n, in); }
  std::int64_t row_bytes_of_c() const { return row(n, out); }

 private:
  static std::int64_t row(std::int64_t columns, DType type) {
    return columns * static_cast<std::int64_t>(size_of(type));
  }
};
/// "bf16 [256,768] x [768,3072]^T, bias, gelu_tanh": contains every field, so that equal texts are
/// equal products.
std::string to_string(const Product& product);

/// Products requested so far from a null device, in Device::plans(); with their epilogues if a GPU
/// would try them in one call.
struct ProductsAsked {
  std::set<Product> all;
};

/// Number of a library's proposals that are considered.
inline constexpr int kMostProposals = 8;
/// Seconds of every proposal for a product of the main stream, on random numbers in separate
/// memory, in the library's order; infinite if it cannot be run. Empty if the product is not
/// computed in one call here, if there is only one proposal, or if this is not a GPU. Throws Error
/// if memory is short: see product_bytes().
std::vector<double> time_proposals(const Stream& stream, const Product& product);
/// Bytes of device memory for its operands.
double product_bytes(const Product& product);
/// Number of the chosen proposal of each product, from 0.
using ProductChoices = std::map<Product, int>;
/// Products of a GPU that are planned from now on use these choices if their operands are aligned
/// like the timed ones; all others use the first proposal.
void choose_products(Device& device, const ProductChoices& choices);
/// The library whose proposals these are, "cuBLASLt 13.1.0 (libcublasLt.so.13)"; empty on other
/// devices.
std::string product_library(const Device& device);

}  // namespace choir::ops

namespace choir {

// C = op(A) op(B) (+ bias) (+ C), row-major; on the CPU, and on a GPU with the epilogues above
// fused.
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
// Implementations of the functions of ops::Product on a cuda device.
std::vector<double> time_cuda_proposals(const Stream& stream, const ops::Product& product);
void choose_cuda_products(Device& device, const ops::ProductChoices& choices);
std::string cuda_product_library();

namespace cuda {
/// Like gemm_few_rows() on the CPU, for up to 4 rows (16-bit types: 8) that are whole packs of 16
/// bytes.
CHOIR_CUDA_KERNEL bool gemm_few_rows(const Stream& stream, const GemmArgs& args);
/// True if gemm_gelu() computes this product: 16 bits, the exact GELU of X W^T, or its gradient of
/// dY W, whole packs of 16 bytes, on sm_90.
CHOIR_CUDA_KERNEL bool gemm_gelu_offers(const Stream& stream, const GemmArgs& args);
CHOIR_CUDA_KERNEL void gemm_gelu(const Stream& stream, const GemmArgs& args);
}  // namespace cuda

namespace ref {
/// The reference: plain loops, sums in f64, one rounding. Epilogues use the unrounded product, and
/// sums use the unrounded C.
void gemm(const GemmArgs& args);
}  // namespace ref

}  // namespace choir
