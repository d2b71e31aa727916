#pragma once
// softmax(cap(scale * Q K^T)) V for many heads, without ever writing the T x T matrix to main
// memory. Q, K, V and O are accessed through strides, so they may lie inside one packed [B, T, (H +
// 2 Hkv) * D] tensor or in a cache.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

constexpr std::int64_t kWidestHead = 256;

/// Operand in memory: element (b, t, h, d) is at data + b*batch_stride + t*position_stride +
/// h*head_width + d (strides in elements).
struct AttentionOperand {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t position_stride = 0;
};

/// Implementation on the cuda device. `automatic` prefers cuDNN if the build has it and it supports
/// the problem. On other devices `automatic` and `own` are the same.
enum class AttentionImplementation : std::uint8_t { automatic, own, cudnn };

struct AttentionProblem {
  std::int64_t batch = 0;
  std::int64_t heads = 0;       ///< H, a multiple of kv_heads
  std::int64_t kv_heads = 0;    ///< Hkv; query head h reads K/V head h / (H / Hkv)
  std::int64_t head_width = 0;  ///< D, at most kWidestHead
  std::int64_t queries = 0;     ///< Tq
  std::int64_t keys = 0;        ///< Tk >= Tq when causal
  bool causal = true;           ///< query i sees keys 0 .. Tk - Tq + i
  /// Sliding window: if not 0, a query sees only the last `window` of those keys. Requires a causal
  /// mask and no bias.
  std::int64_t window = 0;
  double scale = 1.0;  ///< positive; usually 1/sqrt(D)
  /// c: scaled scores s become c tanh(s / c) before the mask (Gemma 2), and their gradients are
  /// multiplied by 1 - (c tanh(s / c) / c)^2. Requires no bias. 0: none.
  double softcap = 0;
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16; sums in f32 (f64 for f64)
  /// Keys at or beyond lengths[b] are masked; nullptr: none are. Rows without visible keys give 0.
  const std::int32_t* lengths = nullptr;
  /// If not 0, a sequence holds several documents, and a query sees only keys of its own document.
  /// The document of position j of sample b begins at begins[b * positions + min(j, positions -
  /// 1)], which is ascending in j and at most j; query i has position Tk - Tq + i. Requires a
  /// causal mask and no bias.
  std::int64_t positions = 0;
  const std::int32_t* begins = nullptr;
  /// If not nullptr, there are *seen + 1 keys. The number is in device memory and may change
  /// between replays of a recorded call; `keys` is its upper limit. Requires one query, cuda, and
  /// rows that are whole packs of 16 bytes; workspace and counts are those of all `keys`.
  const std::int32_t* seen = nullptr;
  bool biased = false;  ///< the call passes a bias (the size of the workspace depends on it)
  /// Backward gives the same bits each time. If false, cuDNN may sum dQ with atomics, which is
  /// faster and takes less scratch memory; all other implementations are deterministic anyway.
  bool deterministic = true;
  AttentionImplementation implementation = AttentionImplementation::automatic;

  /// True if the window masks any key at all.
  bool windowed() const { return window > 0 && window < keys; }
  bool divided() const { return positions > 0; }
};

/// Added to the scaled scores: softmax(scale * Q K^T + bias). Element (b, h, i, j) is at data +
/// b*batch_stride + h*head_stride + i*query_stride + j, in elements of the problem's dtype. A
/// stride of 0 broadcasts; a query stride of row length - 1 is the relative shift of Transformer-XL
/// without a copy. Values are finite, or -inf to mask a key.
struct AttentionBias {
  const void* data = nullptr;  ///< nullptr: none
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t query_stride = 0;
};

struct AttentionForward {
  AttentionProblem problem;
  AttentionOperand q, k, v, out;
  /// [B, H, Tq] f32 (f64 for f64), output; -inf for rows without visible keys. Empty in inference.
  TensorView log_sum_exp;
  TensorView workspace;  ///< u8, at least attention_workspace(problem, false)
  AttentionBias bias;
};

struct AttentionBackward {
  AttentionProblem problem;
  AttentionOperand q, k, v, out, d_out;  ///< inputs
  /// The output of forward. If the keys are only a part of a larger set, this and `out` are the
  /// merged values over the whole set (kernels/attention/attention.hpp).
  TensorView log_sum_exp;
  AttentionOperand d_q, d_k, d_v;  ///< overwritten
  TensorView workspace;            ///< u8, at least attention_workspace(problem, true)
  AttentionBias bias;              ///< the bias of forward
  /// [B, H, Tq, Tk] of the problem's dtype, overwritten (0 for masked pairs): the gradient before
  /// any sum over broadcast dimensions of the bias. Empty if it is not needed.
  TensorView d_bias;
};

/// Bytes of scratch memory for the kind of device that the stream's device plans for; a pure
/// function of the problem and, on the CPU, of the thread count. Throws DeckError if that kind of
/// device does not support the problem.
std::int64_t attention_workspace(const Stream& stream, const AttentionProblem& problem,
                                 bool backward);
void attention_forward(const Stream& stream, const AttentionForward& args);
void attention_backward(const Stream& stream, const AttentionBackward& args);

}  // namespace choir::ops

namespace choir {

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
/// Keys per block if a sample has one query.
constexpr std::int64_t kOneQueryPart = 1024;
/// Our own kernels. The caller has already refused f64 (kernels/attention/attention.cpp).
CHOIR_CUDA_KERNEL void attention_forward(const Stream& stream, const ops::AttentionForward& args);
CHOIR_CUDA_KERNEL void attention_backward(const Stream& stream, const ops::AttentionBackward& args);
/// Attention of one query per sample. Returns false, with nothing queued, for other problems and if
/// rows are not whole packs of 16 bytes.
CHOIR_CUDA_KERNEL bool attention_of_one_query(const Stream& stream,
                                              const ops::AttentionForward& args);
/// A pure function. Backward keeps sums over D of d_out * out, f32 [B, H, Tq]. Forward of one query
/// keeps the partial results, D (rounded up) and two floats per part, if there are several parts.
inline std::int64_t attention_workspace(const ops::AttentionProblem& p, bool backward) {
  const std::int64_t parts = (p.keys + kOneQueryPart - 1) / kOneQueryPart;
  const std::int64_t width = p.head_width <= 128 ? 128 : ops::kWidestHead;
  std::int64_t floats = backward ? p.queries : 0;
  if (!backward && p.queries == 1 && parts > 1) floats = parts * (width + 2);
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

namespace choir::ops {

// Attention over several sets of keys, one after another: merges the results of the single sets
// into the result of attention over all of them (log-sum-exp merging, as in ring attention: Liu et
// al. 2023).

/// Per (sample, head, query), with l the accumulated log of the sum of exponentials and p that of
/// the part: l' = log(e^l + e^p), out' = e^(l - l') out + e^(p - l') part. Queries without visible
/// keys in a set have -inf there. The backward pass of each set is attention_backward() with the
/// final out and log_sum_exp.
struct AttentionMerge {
  std::int64_t heads = 0;       ///< H
  std::int64_t queries = 0;     ///< Tq
  TensorView part;              ///< [B * Tq, H * D], of any element type
  TensorView part_log_sum_exp;  ///< [B, H, Tq] f32 (f64 for f64)
  TensorView out;               ///< [B * Tq, H * D] f32 (f64 for f64), overwritten
  TensorView log_sum_exp;       ///< as part_log_sum_exp, overwritten
  bool first = false;           ///< `out` and `log_sum_exp` are not initialised yet
};

void attention_merge(const Stream& stream, const AttentionMerge& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {

// Merging of attention over sets of keys. Floor per element: 2 reads and 1 write (the first part: 1
// and 1); two exponentials and a logarithm per row of a head are negligible.

/// T: the element type of the part.
template <class T>
void attention_merge(const ops::AttentionMerge& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void attention_merge(const Stream& stream, const ops::AttentionMerge& args);
}  // namespace cuda

namespace ref {
/// In f64, any dtype.
void attention_merge(const ops::AttentionMerge& args);
}  // namespace ref

}  // namespace choir
