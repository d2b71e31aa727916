#pragma once
// The blocks of the models: transformer block and FastConformer block.
#include <memory>
#include <string>

#include "choir/nn/layers/feed_forward.hpp"
#include "choir/nn/layers/norms.hpp"
#include "choir/nn/pass.hpp"
#include "kernels/stochastic_depth/stochastic_depth.hpp"
#include "src/nn/layers/convolutions.hpp"
#include "src/nn/layers/relative_attention.hpp"
#include "src/nn/layers/self_attention.hpp"

namespace choir {

/// The order of the branches of a transformer block and of their norms.
struct BlockForm {
  NormPlace norms = NormPlace::pre;
  bool parallel = false;  ///< both branches read the input of the block
};

/// Transformer block on a residual stream: x += attention(norm(x)); x += feed_forward(norm(x)), or
/// in parallel form x += attention(norm(x)) + feed_forward(norm'(x)), with norms in front of the
/// branches, behind them, or both.
class TransformerBlock {
 public:
  TransformerBlock(ParameterSet& parameters, const std::string& name,
                   const ResidualNorm::Options& norm, BlockForm form,
                   const SelfAttention::Options& attention,
                   const FeedForward::Options& feed_forward);

  /// The pass acquires the buckets of tiles. The caller acquires the bucket of the block and
  /// reports its gradients.
  ResidualStream forward(Pass& pass, const ResidualStream& in, const TensorView& rope_table);
  /// Returns the gradient of the incoming stream from that of the outgoing stream. With full
  /// recomputation it is collective over the tensor axis like forward, because it runs forward.
  Tensor backward(Pass& pass, Tensor d_stream, const TensorView& rope_table);

  /// See SelfAttention::remember.
  void remember(Pass& pass, StreamState& state, std::int64_t capacity) const {
    attention_.remember(pass, state, capacity);
  }

 private:
  using Norm = std::unique_ptr<ResidualNorm>;  ///< nullptr where the block has none

  void forward_again(Pass& pass, const TensorView& rope_table);
  /// The stream before a branch and the input of the branch: its sum and norm or, without a norm,
  /// its sum twice.
  static ResidualNorm::Output enter(Pass& pass, const Norm& norm, const ResidualStream& stream,
                                    bool keep_statistics);
  /// The stream that enters the second branch, after `attended` left the first.
  ResidualStream second_input(const Tensor& sum, const Tensor& attended) const {
    return {sum, parallel_ ? Tensor() : attended};
  }
  /// The output of a branch as it is added to the stream.
  static Tensor leave(Pass& pass, const Norm& norm, Tensor branch);
  /// Gradients from the end of a branch to that of its output, and from that of its input to that
  /// of the stream.
  static Tensor leave_backward(Pass& pass, const Norm& norm, const Tensor& d_stream);
  static Tensor enter_backward(Pass& pass, const Norm& norm, Tensor d_input, Tensor d_stream);
  ResidualNorm* source(const Norm& norm) const {
    return recompute_ == Recompute::selective ? norm.get() : nullptr;
  }

  Norm attention_norm_;
  SelfAttention attention_;
  Norm attention_post_norm_, feed_forward_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm feed_forward_post_norm_;
  Recompute recompute_;
  bool parallel_;
};

/// A FastConformer block on a residual stream x [B*T, C] (Gulati et al. 2020):
///   r = x + 1/2 feed_forward_1(norm(x)); r += attention(norm(r)); r += convolution(norm(r));
///   r += 1/2 feed_forward_2(norm(r)); y = norm(r)
/// With stochastic depth an utterance skips the block with probability p (y = x); the other
/// utterances have y = x + (y - x)/(1 - p).
class ConformerBlock {
 public:
  struct Options {
    std::int64_t width = 0, hidden = 0, heads = 0, kernel = 9;
    bool causal = false;
    ops::AttentionContext context{};
    double dropout = 0, stochastic_depth = 0;
    double norm_eps = 1e-5;
    bool batch_norm = false;               ///< the norm inside the convolution module
    bool attention_in_one_kernel = false;  ///< RelativeAttention::Options::one_kernel
    Recompute recompute = Recompute::none;
  };
  ConformerBlock(ParameterSet& parameters, const std::string& name, const Options& options);

  /// `positions` as in RelativeAttention. x is not changed. With streams, x is their next chunk.
  Tensor forward(Pass& pass, const Tensor& x, const Tensor& positions);
  /// Returns d_x. With full recomputation it is collective over the tensor axis like forward,
  /// because it runs forward.
  Tensor backward(Pass& pass, Tensor d_y);

  /// See RelativeAttention::remember.
  void remember(Pass& pass, StreamState& state, std::int64_t left, std::int64_t chunk,
                const Tensor& positions) const;

 private:
  Tensor transform(Pass& pass, const Tensor& x, const Tensor& positions);
  Tensor transform_backward(Pass& pass, const Tensor& d_y);
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
