#pragma once
// softmax(scale * Q K^T) V for many heads, without ever writing the T x T matrix to main memory. Q,
// K, V and O are accessed through strides, so they may lie inside one packed [B, T, (H + 2 Hkv) *
// D] tensor or in a cache.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

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
  double scale = 1.0;        ///< positive; usually 1/sqrt(D)
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
  /// merged values over the whole set (choir/ops/attention_merge.hpp).
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
