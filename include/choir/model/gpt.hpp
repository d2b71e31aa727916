#pragma once
// A decoder-only transformer language model: embedding, blocks, final norm, head, loss.
#include <memory>
#include <string>
#include <vector>

#include "choir/model/gpt_config.hpp"
#include "choir/nn/bucket_hooks.hpp"
#include "choir/nn/transformer_block.hpp"

namespace choir {

class Gpt {
 public:
  /// Registers all parameters, one bucket for the embedding, one a block, one for the end.
  /// Initialisation as nanoGPT: normal(0, 0.02), residual outputs 0.02/sqrt(2 L), norms 1, biases
  /// 0.
  Gpt(const GptConfig& config, ParameterSet& parameters);

  const GptConfig& config() const { return config_; }

  /// Prepares tables on the device (rope). Call once, before any pass.
  void prepare(Pass& pass, const TensorView& rope_table);
  /// Elements of the table that prepare() wants, {0} without rope; in the statistics type.
  Shape rope_table_shape() const;

  /// Training and evaluation: ids and targets [B*T] i32 (targets < 0 ignored) -> per-token losses
  /// [B*T].
  /// While training, the gradient of scale * (sum of losses) is prepared for backward(); a device
  /// scalar `device_scale` multiplies the scale.
  Tensor loss(Pass& pass, const TensorView& ids, const TensorView& targets, double scale,
              BucketHooks& hooks, const double* device_scale = nullptr);
  /// Consumes what loss() saved; adds to every parameter's gradient. With postponed weight
  /// gradients the ids must live until those ran, and hooks hear gradients_ready() before they are.
  void backward(Pass& pass, const TensorView& ids, BucketHooks& hooks);
  /// Generation: ids [B*T] -> logits of the last position [B, V']; appends to the cache of the
  /// pass. Columns at or beyond the vocabulary are padding.
  Tensor next_logits(Pass& pass, const TensorView& ids, BucketHooks& hooks);

  /// Heads of keys and values in the cache of this rank.
  std::int64_t kv_heads_of_rank() const;

  /// "embedding 65 x 768 ...", one module a line, with parameter counts.
  std::string describe() const;
  /// N of the MFU formula: all parameters but the position embedding (nanoGPT's convention).
  std::int64_t parameters_without_positions() const;
  /// FLOPs of forward and backward per token: 6 N + 12 L H Q T (PaLM, nanoGPT).
  double flops_per_token() const;

 private:
  /// Where this rank's part of the vocabulary begins.
  std::int64_t first_id() const;
  ResidualStream embed(Pass& pass, const TensorView& ids);
  Tensor trunk(Pass& pass, const TensorView& ids, BucketHooks& hooks);
  void release_head(BucketHooks& hooks) const;
  static void embedding_gradient(Pass& pass, void* self, const Tensor& ids,
                                 const Tensor& d_embedding);

  GptConfig config_;
  ParameterSet* parameters_;
  TensorView rope_table_;
  Parameter* tokens_ = nullptr;
  Parameter* positions_ = nullptr;
  Dropout embedding_dropout_;
  std::vector<std::unique_ptr<TransformerBlock>> blocks_;
  std::unique_ptr<ResidualNorm> final_norm_;
  std::unique_ptr<Linear> head_;
};

}  // namespace choir
