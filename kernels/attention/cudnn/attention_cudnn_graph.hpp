#pragma once
// Attention as graphs of elementary operations that cuDNN recognises and fuses ("flash": nothing of
// size Tq x Tk reaches memory).
//
// forward, 8 to 17 operations: S = Q K^T, times scale, [plus bias], [causal: row index (plus Tk -
// Tq), column index, row >= column, select], m = max, exp(S - m), sum, [L = m + log(sum)], divide,
// O = P V.
// backward, 18 to 29: delta = rowsum(dO * O), S as above, P = exp(S - L), dV = P^T dO, dP = dO V^T,
// dS = P (dP - delta) scale, dK = dS^T Q, dQ = dS K. With fewer K/V heads than query heads, dK and
// dV are summed over each group. dQ is either written directly (cuDNN then keeps dS in its
// workspace and the order of every sum is fixed), or summed with atomics into an f32 buffer of
// ours. L is the natural logarithm, as ops::AttentionForward::log_sum_exp. Masked scores become the
// lowest float, not -inf: no row is empty (Tk >= Tq), and their exponentials are exactly 0.
#include <cstdint>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_cudnn.hpp"
#include "kernels/attention/cudnn/cudnn_backend.hpp"

namespace choir::cudnn {

/// Ids by which tensors are bound.
enum AttentionUid : std::int64_t {
  kUidQ = 1,
  kUidK,
  kUidV,
  kUidOut,
  kUidLogSumExp,
  kUidBias,
  kUidDOut,
  kUidDQ,
  kUidDK,
  kUidDV,
  kUidDBias,
  kUidDQSum
};

Graph attention_forward_graph(const ops::AttentionProblem& problem, const AttentionLayout& layout);
Graph attention_backward_graph(const ops::AttentionProblem& problem, const AttentionLayout& layout);

}  // namespace choir::cudnn
