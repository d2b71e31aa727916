#pragma once
// softmax(scale * Q K^T) V for many heads, without ever writing the T x T matrix to main memory. Q,
// K, V, O are read through strides, so they may lie inside one packed [B, T, (H + 2 Hkv) * D]
// tensor or in a cache.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

constexpr std::int64_t kWidestHead = 256;

/// Where element (b, t, h, d) lies: data + b*batch_stride + t*position_stride + h*head_width + d
/// (elements).
struct AttentionOperand {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t position_stride = 0;
};

/// Who computes on the cuda device; `automatic` prefers cuDNN where the build has it and it takes
/// the problem. Elsewhere `automatic` and `own` are the same.
enum class AttentionImplementation : std::uint8_t { automatic, own, cudnn };

struct AttentionProblem {
  std::int64_t batch = 0;
  std::int64_t heads = 0;       ///< H, a multiple of kv_heads
  std::int64_t kv_heads = 0;    ///< Hkv; query head h reads K/V head h / (H / Hkv)
  std::int64_t head_width = 0;  ///< D, at most kWidestHead
  std::int64_t queries = 0;     ///< Tq
  std::int64_t keys = 0;        ///< Tk >= Tq when causal
  bool causal = true;           ///< query i sees keys 0 .. Tk - Tq + i
  /// Not 0: of those only the last so many (a sliding window); causal, and without a bias.
  std::int64_t window = 0;
  double scale = 1.0;        ///< positive; usually 1/sqrt(D)
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16; sums in f32 (f64 for f64)
  /// Keys at or beyond lengths[b] are not seen; nullptr: all. Rows that see nothing give 0.
  const std::int32_t* lengths = nullptr;
  /// Not 0: sequences of several documents, of which a query sees its own alone. Position j of
  /// sample b is of the one that begins at begins[b * positions + min(j, positions - 1)], ascending
  /// along j and at most j; query i has position Tk - Tq + i. Causal, and without a bias.
  std::int64_t positions = 0;
  const std::int32_t* begins = nullptr;
  /// Not nullptr: there are *seen + 1 keys, a number in device memory that others may change
  /// between runs of a recorded call, and `keys` is the most there is room for. One query, on cuda,
  /// whole packs of 16 bytes in every row; workspace and counts are those of all keys.
  const std::int32_t* seen = nullptr;
  bool biased = false;  ///< the call brings a bias (it decides about the workspace)
  /// Backward gives the same bits each time. Otherwise cuDNN's may gather dQ by atomics, which is
  /// faster and takes less scratch memory; all others give the same bits anyway.
  bool deterministic = true;
  AttentionImplementation implementation = AttentionImplementation::automatic;

  /// Whether the window hides any key at all.
  bool windowed() const { return window > 0 && window < keys; }
  bool divided() const { return positions > 0; }
};

/// Added to the scaled scores: softmax(scale * Q K^T + bias). Element (b, h, i, j) lies at data +
/// b*batch_stride + h*head_stride + i*query_stride + j, in elements of the problem's dtype. Strides
/// of 0 give the same to all; a query stride of row length - 1 is the relative shift of
/// Transformer-XL without a copy. Finite; -inf hides a key.
struct AttentionBias {
  const void* data = nullptr;  ///< nullptr: none
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t query_stride = 0;
};

struct AttentionForward {
  AttentionProblem problem;
  AttentionOperand q, k, v, out;
  /// [B, H, Tq] f32 (f64 for f64), written, -inf for rows that see nothing; empty when not
  /// training.
  TensorView log_sum_exp;
  TensorView workspace;  ///< u8, at least attention_workspace(problem, false)
  AttentionBias bias;
};

struct AttentionBackward {
  AttentionProblem problem;
  AttentionOperand q, k, v, out, d_out;  ///< inputs
  /// As written by forward; or this and `out` as merged over more keys
  /// (choir/ops/attention_merge.hpp), of which these are some.
  TensorView log_sum_exp;
  AttentionOperand d_q, d_k, d_v;  ///< overwritten
  TensorView workspace;            ///< u8, at least attention_workspace(problem, true)
  AttentionBias bias;              ///< the one of forward
  /// [B, H, Tq, Tk] of the problem's dtype, overwritten (0 for pairs that do not see each other):
  /// the gradient before any sum over what the bias broadcasts. Empty when not wanted.
  TensorView d_bias;
};

/// Bytes of scratch memory for the kind of device the stream's device plans for; a pure function of
/// the problem and, on the CPU, of the thread count. DeckError for what that kind of device
/// refuses.
std::int64_t attention_workspace(const Stream& stream, const AttentionProblem& problem,
                                 bool backward);
void attention_forward(const Stream& stream, const AttentionForward& args);
void attention_backward(const Stream& stream, const AttentionBackward& args);

}  // namespace choir::ops
