#pragma once
// Matrix products and attention, one by one, on normal random data, each checked against the fp64
// reference: those of a model, where the time of a step beyond its floor can be, and series of
// their own.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/device/device.hpp"
#include "choir/nn/precision.hpp"
#include "choir/ops/attention.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir {

/// One product of the step, as ops::gemm takes it: C [m, n] over an inner extent k. Several in one
/// call as ops::gemm_batched takes them, one after the other in memory.
struct StepGemm {
  std::string name;  ///< "blocks.*.attention.qkv forward", "... d_input", "... d_weight"
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transpose_a = false, transpose_b = false;
  bool to_gradient = false;  ///< weight gradients are added to sums in their own type
  std::int64_t calls = 1;    ///< a micro-batch
  double flops() const {
    return 2.0 * static_cast<double>(batch * m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// n x n x n for n = 1024, 2048, ... `largest`, forward form (B transposed). Pure.
std::vector<StepGemm> square_gemms(std::int64_t largest);

/// Local; about `seconds` of calls a row. `ceiling`: FLOP/s that rows are held against. Sampled
/// rows and columns of every result are checked over their whole inner extent.
std::vector<ops::BenchRow> bench_gemms(Device& device, const std::vector<StepGemm>& gemms,
                                       const Precision& precision, double ceiling,
                                       double seconds = 0.2);

/// Self-attention of `tokens` queries and keys.
struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, head_width = 64, tokens = 64;
  bool causal = true;
  std::int64_t calls = 0;  ///< a micro-batch; 0: not part of one

  /// 4 T^2 D per head forward, half of it when causal; backward 2.5 times as many (five products
  /// for two). The convention of the FlashAttention papers.
  double flops(bool backward) const;
};

/// T = 64, 256, ... up to `longest`, head width 32, 64, 128, causal and full; `tokens` in the batch
/// and heads that make `width` features together, whatever T and the head width. Pure.
std::vector<AttentionShape> attention_series(std::int64_t longest, std::int64_t tokens,
                                             std::int64_t width);

struct AttentionBench {
  std::vector<ops::BenchRow> rows;   ///< forward and backward of every implementation
  std::vector<std::string> remarks;  ///< what was left out, and why
};
/// Local. The implementations that the device has (`which`: automatic all, else that one),
/// on the same operands. Checked are the last
/// head of the last sample: all queries of a short sequence, else some at both ends and in the
/// middle, with the gradients of all keys for an output gradient that is zero elsewhere.
AttentionBench bench_attention(Device& device, const std::vector<AttentionShape>& shapes,
                               DType dtype, ops::AttentionImplementation which, double ceiling,
                               double seconds = 0.2);

}  // namespace choir
