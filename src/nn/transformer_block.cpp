#include "choir/nn/transformer_block.hpp"

#include <utility>

#include "choir/device/profile_range.hpp"

namespace choir {

TransformerBlock::TransformerBlock(ParameterSet& parameters, const std::string& name,
                                   const ResidualNorm::Options& norm,
                                   const SelfAttention::Options& attention,
                                   const FeedForward::Options& feed_forward)
    : attention_norm_(parameters, name + ".attention_norm", attention.width, norm),
      attention_(parameters, name + ".attention", attention),
      feed_forward_norm_(parameters, name + ".feed_forward_norm", attention.width, norm),
      feed_forward_(parameters, name + ".feed_forward", feed_forward) {}

ResidualStream TransformerBlock::forward(Pass& pass, const ResidualStream& in,
                                         const TensorView& rope_table) {
  const ProfileRange range(pass.stream(), "block forward");
  ResidualStream middle;
  {
    const ResidualNorm::Output norm = attention_norm_.forward(pass, in);
    middle = {norm.sum, attention_.forward(pass, norm.normed, rope_table)};
  }
  const ResidualNorm::Output norm = feed_forward_norm_.forward(pass, middle);
  middle = {};
  return {norm.sum, feed_forward_.forward(pass, norm.normed)};
}

Tensor TransformerBlock::backward(Pass& pass, Tensor d_stream, const TensorView& rope_table) {
  const ProfileRange range(pass.stream(), "block backward");
  {
    const Tensor d_normed = feed_forward_.backward(pass, d_stream);
    d_stream = feed_forward_norm_.backward(pass, d_normed, std::move(d_stream));
  }
  const Tensor d_normed = attention_.backward(pass, d_stream, rope_table);
  return attention_norm_.backward(pass, d_normed, std::move(d_stream));
}

}  // namespace choir
