#pragma once
// A FastConformer block on a residual stream x [B*T, C] (Gulati et al. 2020):
//   r = x + 1/2 feed_forward_1(norm(x)); r += attention(norm(r)); r += convolution(norm(r));
//   r += 1/2 feed_forward_2(norm(r)); y = norm(r)
// With stochastic depth the block is left out of an utterance with some probability p, y = x, and
// counts for y = x + (y - x)/(1 - p) in the others.
#include <memory>
#include <string>

#include "choir/nn/convolution_module.hpp"
#include "choir/nn/feed_forward.hpp"
#include "choir/nn/recompute.hpp"
#include "choir/nn/relative_attention.hpp"
#include "choir/nn/residual_norm.hpp"
#include "choir/ops/stochastic_depth.hpp"

namespace choir {

/// What a block over the chunks of a stream keeps of those before.
struct BlockPast {
  AttentionPast attention;
  RecentRows convolution;
};

class ConformerBlock {
 public:
  struct Options {
    std::int64_t width = 0, hidden = 0, heads = 0, kernel = 9;
    bool causal = false;
    ops::AttentionContext context{};
    double dropout = 0, stochastic_depth = 0;
    double norm_eps = 1e-5;
    bool batch_norm = false;  ///< inside the convolution module
    Recompute recompute = Recompute::none;
  };
  ConformerBlock(ParameterSet& parameters, const std::string& name, const Options& options);

  /// `positions` as in RelativeAttention. x stays as it is.
  Tensor forward(Pass& pass, const Tensor& x, const Tensor& positions, BucketHooks& hooks);
  /// d_x from d_y. With full recomputation collective over the tensor axis as forward is, for
  /// forward runs in it.
  Tensor backward(Pass& pass, Tensor d_y, BucketHooks& hooks);

  /// For streams, as RelativeAttention::make_past.
  BlockPast make_past(Pass& pass, std::int64_t left, std::int64_t chunk,
                      const Tensor& positions) const;
  /// A stream begins.
  void begin(Pass& pass, BlockPast& past) const;
  /// Of the next chunk [T, C] of one stream, in evaluation.
  Tensor forward_chunk(Pass& pass, const Tensor& x, BlockPast& past, BucketHooks& hooks);

 private:
  /// With `past` instead of positions: of a chunk.
  Tensor transform(Pass& pass, const Tensor& x, const Tensor& positions, BucketHooks& hooks,
                   BlockPast* past = nullptr);
  Tensor transform_backward(Pass& pass, const Tensor& d_y, BucketHooks& hooks);
  ops::StochasticDepth depth(const Pass& pass) const;
  bool drops(const Pass& pass) const { return pass.training() && options_.stochastic_depth > 0; }
  ResidualNorm* source(ResidualNorm& norm) const {
    return options_.recompute == Recompute::selective ? &norm : nullptr;
  }

  Options options_;
  std::string name_;
  ResidualNorm first_norm_;
  std::unique_ptr<FeedForward> first_;
  ResidualNorm attention_norm_;
  RelativeAttention attention_;
  ResidualNorm convolution_norm_;
  ConvolutionModule convolution_;
  ResidualNorm second_norm_;
  std::unique_ptr<FeedForward> second_;
  ResidualNorm final_norm_;
};

}  // namespace choir
