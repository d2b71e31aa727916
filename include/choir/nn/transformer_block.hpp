#pragma once
// Pre-norm transformer block on a residual stream: x += attention(norm(x)); x +=
// feed_forward(norm(x)).
#include <memory>
#include <string>

#include "choir/nn/feed_forward.hpp"
#include "choir/nn/recompute.hpp"
#include "choir/nn/residual_norm.hpp"
#include "choir/nn/self_attention.hpp"

namespace choir {

class TransformerBlock {
 public:
  TransformerBlock(ParameterSet& parameters, const std::string& name,
                   const ResidualNorm::Options& norm, const SelfAttention::Options& attention,
                   const FeedForward::Options& feed_forward);

  /// `hooks` hear of the buckets of tiles; who calls has acquired that of the block, and told of
  /// its gradients.
  ResidualStream forward(Pass& pass, const ResidualStream& in, const TensorView& rope_table,
                         BucketHooks& hooks);
  /// The gradient of the stream going in, from that of the stream going out. With full
  /// recomputation collective over the tensor axis as forward is, for forward runs in it.
  Tensor backward(Pass& pass, Tensor d_stream, const TensorView& rope_table, BucketHooks& hooks);

 private:
  void forward_again(Pass& pass, const TensorView& rope_table);
  ResidualNorm* source(ResidualNorm& norm) const {
    return recompute_ == Recompute::selective ? &norm : nullptr;
  }

  ResidualNorm attention_norm_;
  SelfAttention attention_;
  ResidualNorm feed_forward_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  Recompute recompute_;
};

}  // namespace choir
