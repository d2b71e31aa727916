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
      feed_forward_(FeedForward::create(parameters, name + ".feed_forward", feed_forward)),
      recompute_(feed_forward.recompute) {}

ResidualStream TransformerBlock::forward(Pass& pass, const ResidualStream& in,
                                         const TensorView& rope_table, BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "block forward");
  const bool keeps_all = recompute_ == Recompute::none;
  ResidualStream middle;
  ResidualNorm::Output norm = attention_norm_.forward(pass, in, keeps_all);
  const Pass::Unsaved entrance_alone(pass, recompute_ == Recompute::full);
  middle = {norm.sum, attention_.forward(pass, norm.normed, rope_table, source(attention_norm_))};
  norm = {};
  norm = feed_forward_norm_.forward(pass, middle, keeps_all);
  middle = {};
  return {norm.sum, feed_forward_->forward(pass, norm.normed, hooks, source(feed_forward_norm_))};
}

// All but the last product, whose result nobody reads.
void TransformerBlock::forward_again(Pass& pass, const TensorView& rope_table) {
  const ProfileRange range(pass.stream(), "block forward again");
  ResidualStream middle;
  {
    const ResidualNorm::Output norm = attention_norm_.forward(pass, {pass.pop(), Tensor()});
    middle = {norm.sum, attention_.forward(pass, norm.normed, rope_table)};
  }
  feed_forward_->forward_again(pass, feed_forward_norm_.forward(pass, middle).normed);
}

Tensor TransformerBlock::backward(Pass& pass, Tensor d_stream, const TensorView& rope_table,
                                  BucketHooks& hooks) {
  if (recompute_ == Recompute::full) forward_again(pass, rope_table);
  const ProfileRange range(pass.stream(), "block backward");
  {
    const Tensor d_normed =
        feed_forward_->backward(pass, d_stream, hooks, source(feed_forward_norm_));
    d_stream = feed_forward_norm_.backward(pass, d_normed, std::move(d_stream));
  }
  const Tensor d_normed = attention_.backward(pass, d_stream, rope_table, source(attention_norm_));
  return attention_norm_.backward(pass, d_normed, std::move(d_stream));
}

}  // namespace choir
