#pragma once
// Benches of single matrix products and attention calls on normal random data, each checked against
// the fp64 reference. The shapes are those of a deck's micro-batch (its step runs on a null device,
// which records the requested work), which show where a step loses time against its floor, or
// series of their own.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/device/device.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/parameter_set.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/bench/bench_table.hpp"

namespace choir {

/// One product of the step in the form of ops::gemm: C [m, n] over an inner extent k. With `batch`
/// above 1, several in one call in the form of ops::gemm_batched, one after the other in memory.
struct StepGemm {
  std::string name;  ///< "blocks.*.attention.qkv forward", "... d_input", "... d_weight"
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transpose_a = false, transpose_b = false;
  bool to_gradient = false;  ///< weight gradients are added to sums in the gradient type
  std::int64_t calls = 1;    ///< per micro-batch
  double flops() const {
    return 2.0 * static_cast<double>(batch * m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// Products of n x n x n for n = 1024, 2048, ... `largest`, in forward form (B transposed). Pure.
std::vector<StepGemm> square_gemms(std::int64_t largest);

/// Times each product for about `seconds`. Local. `ceiling` is the FLOP/s that rows are compared
/// with. Sampled rows and columns of every result are checked over their whole inner extent.
std::vector<ops::BenchRow> bench_gemms(Device& device, const std::vector<StepGemm>& gemms,
                                       const Precision& precision, double ceiling,
                                       double seconds = 0.2);

/// Self-attention of `tokens` queries and keys.
struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, head_width = 64, tokens = 64;
  bool causal = true;
  std::int64_t calls = 0;  ///< per micro-batch; 0: not part of one

  /// 4 T^2 D per head forward, half of that if causal; 2.5 times as many backward (five products in
  /// place of two). This is the convention of the FlashAttention papers.
  double flops(bool backward) const;
};

/// Shapes with T = 64, 256, ... up to `longest`, head width 32, 64, 128, causal and full. Each has
/// about `tokens` tokens in the batch, and its heads have `width` features together. Pure.
std::vector<AttentionShape> attention_series(std::int64_t longest, std::int64_t tokens,
                                             std::int64_t width);

struct AttentionBench {
  std::vector<ops::BenchRow> rows;   ///< forward and backward of each implementation
  std::vector<std::string> remarks;  ///< the shapes that were left out, and why
};
/// Times the implementations that the device has on the same operands (`which`: automatic for all,
/// else only that one). Local. The last head of the last sample is checked: all queries of a short
/// sequence, else some at both ends and in the middle, with the gradients of all keys for an output
/// gradient that is zero elsewhere.
AttentionBench bench_attention(Device& device, const std::vector<AttentionShape>& shapes,
                               DType dtype, ops::AttentionImplementation which, double ceiling,
                               double seconds = 0.2);

struct DeckWork {
  ModelConfig model;
  /// The largest by bytes; products and attention belong to the shape of most FLOPs.
  BatchShape shape;
  /// Products by the type of their factors, most FLOPs first: forward and both backward products.
  std::map<DType, std::vector<StepGemm>> gemms;
  std::vector<AttentionShape> attention;  ///< calls of the attention operation; each shape once
};

/// Returns the work of one rank that holds the whole model, however the deck divides it, on a
/// device like `device`. Collective over the mesh; all ranks get the same result. A deck without a
/// vocabulary size gets `symbols`, or the size of its data if these are opened: families whose
/// micro-batches differ in shape open them (synthetic content where `choir bench step` uses it).
/// Throws the errors of opening data.
DeckWork work_of(Deck deck, std::int64_t symbols, Mesh& mesh, const Device& device, Logger& log);

}  // namespace choir
