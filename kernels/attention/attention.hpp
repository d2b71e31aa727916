#pragma once
// softmax(scale Q K^T + bias) V on the CPU, forward and backward, tile by tile ("flash": Dao et al.
// 2022, 2023; online softmax: Milakov & Gimelshein 2018). For cuda see attention_forward.cuh.
//
// Shapes: Q [B, Tq, H, D], K and V [B, Tk, Hkv, D], all through strides.
// Floor: 4 D FLOPs per visible (query, key) pair forward and 10 D backward (five products), plus
// one exponential each (about 9 vector instructions per 16); bytes are those of Q, K, V, O and
// negligible from T = 64 on. For D = 64, forward and backward together, on two Sapphire Rapids
// cores: 2.8 ns per pair in f32 (320 GFLOP/s), 0.15 ns with tiles (6 TFLOP/s from L2). Measured:
// 4.2 and 1.1 ns for T = 256, B H = 48; 4.0 and 0.65 ns for T = 1024.
// Approach: every score tile is computed transposed, S^T = K Q^T with queries along the vector.
// Then maximum, sum and rescaling are vertical (no horizontal reductions), P^T is already the right
// operand of O^T = V^T P^T, and K and V are used in their memory order. Masked tiles are skipped.
// Backward recomputes P^T from log_sum_exp and walks blocks of keys. A task owns (sample, K/V head,
// share of the key blocks), so every sum has a fixed order; the d_q of the shares of one head are
// added in order afterwards.
//   simd: products with broadcast A and vectors of B in registers; f64, f32, and bf16 or f16
//         widened to f32.
//   amx:  bf16 in 16 x 32 tiles, without a bias; P and dS are rounded to bf16 as operands, sums
//         are f32.
#include <cstdint>

#include "choir/ops/attention.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

enum class AttentionKernel { simd, amx };

/// The fastest kernel for this problem on this processor.
AttentionKernel attention_kernel(const ops::AttentionProblem& problem);
/// True if the processor has bf16 tiles and the system lets this process use them (queried once).
bool amx_available();

std::int64_t attention_workspace_cpu(AttentionKernel kernel, const ops::AttentionProblem& problem,
                                     bool backward, int threads);
/// `threads` must be the number for which the workspace was sized.
void attention_forward_cpu(AttentionKernel kernel, const ops::AttentionForward& args, int threads);
void attention_backward_cpu(AttentionKernel kernel, const ops::AttentionBackward& args,
                            int threads);

// The implementations.
std::int64_t attention_forward_simd_bytes(const ops::AttentionProblem& problem, int threads);
std::int64_t attention_backward_simd_bytes(const ops::AttentionProblem& problem, int threads);
std::int64_t attention_forward_amx_bytes(const ops::AttentionProblem& problem, int threads);
std::int64_t attention_backward_amx_bytes(const ops::AttentionProblem& problem, int threads);
void attention_forward_simd(const ops::AttentionForward& args, int threads);
/// True for one query per sample without a bias, the case of token generation. Vectors then run
/// along the head, because vectors along queries would use a single lane; the time is bound by
/// reading K and V.
bool attention_of_one_query(const ops::AttentionProblem& problem);
std::int64_t attention_one_query_simd_bytes(const ops::AttentionProblem& problem, int threads);
void attention_one_query_simd(const ops::AttentionForward& args, int threads);
void attention_backward_simd(const ops::AttentionBackward& args, int threads);
void attention_forward_amx(const ops::AttentionForward& args, int threads);
void attention_backward_amx(const ops::AttentionBackward& args, int threads);

namespace cuda {
constexpr std::int64_t kWidestHead = 128;
/// Keys per block if a sample has one query.
constexpr std::int64_t kOneQueryPart = 1024;
/// Our own kernels. The caller has already refused f64 and wider heads
/// (kernels/attention/attention.cpp).
CHOIR_CUDA_KERNEL void attention_forward(const Stream& stream, const ops::AttentionForward& args);
CHOIR_CUDA_KERNEL void attention_backward(const Stream& stream, const ops::AttentionBackward& args);
/// Attention of one query per sample. Returns false, with nothing queued, for other problems and if
/// rows are not whole packs of 16 bytes.
CHOIR_CUDA_KERNEL bool attention_of_one_query(const Stream& stream,
                                              const ops::AttentionForward& args);
/// A pure function. Backward keeps sums over D of d_out * out, f32 [B, H, Tq]. Forward of one query
/// keeps the partial results, D and two floats per part, if there are several parts.
inline std::int64_t attention_workspace(const ops::AttentionProblem& p, bool backward) {
  const std::int64_t parts = (p.keys + kOneQueryPart - 1) / kOneQueryPart;
  std::int64_t floats = backward ? p.queries : 0;
  if (!backward && p.queries == 1 && parts > 1) floats = parts * (kWidestHead + 2);
  return p.batch * p.heads * floats * static_cast<std::int64_t>(sizeof(float));
}
}  // namespace cuda

namespace ref {
/// The reference: the whole matrix row by row in f64, any dtype. The workspace is not used.
void attention_forward(const ops::AttentionForward& args);
/// Uses only Q, K, V and d_out (out and log_sum_exp are recomputed).
void attention_backward(const ops::AttentionBackward& args);
}  // namespace ref

}  // namespace choir
