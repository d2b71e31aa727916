#pragma once
// Pre-norm transformer block on a residual stream: x += attention(norm(x)); x +=
// feed_forward(norm(x)).
#include <string>

#include "choir/nn/feed_forward.hpp"
#include "choir/nn/residual_norm.hpp"
#include "choir/nn/self_attention.hpp"

namespace choir {

class TransformerBlock {
 public:
  TransformerBlock(ParameterSet& parameters, const std::string& name,
                   const ResidualNorm::Options& norm, const SelfAttention::Options& attention,
                   const FeedForward::Options& feed_forward);

  ResidualStream forward(Pass& pass, const ResidualStream& in, const TensorView& rope_table);
  /// The gradient of the stream going in, from that of the stream going out.
  Tensor backward(Pass& pass, Tensor d_stream, const TensorView& rope_table);

 private:
  ResidualNorm attention_norm_;
  SelfAttention attention_;
  ResidualNorm feed_forward_norm_;
  FeedForward feed_forward_;
};

}  // namespace choir
