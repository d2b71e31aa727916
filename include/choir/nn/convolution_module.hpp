#pragma once
// The convolution module of a conformer block (Gulati et al. 2020): C -> 2C, GLU with frames that
// do not count at zero, depthwise convolution over time, norm (of every frame over its channels, or
// of every channel over the frames of the micro-batch), Swish, C -> C. Over the tensor axis
// channels are divided: both halves of the GLU alike, so that what lies between the products is
// local but for the norm over channels.
#include <memory>
#include <string>

#include "choir/nn/channel_norm.hpp"
#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "choir/nn/recent_rows.hpp"
#include "choir/nn/residual_norm.hpp"

namespace choir {

class ConvolutionModule {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t kernel = 9;
    bool causal = false;  ///< sees no future; else as much of it as of the past
    double norm_eps = 1e-5;
    bool batch_norm = false;  ///< the norm is over frames, not over channels
    double dropout = 0;       ///< on the output
    double init_std = 0.02;
  };
  /// Registers `name`.input [2C, C], `name`.depthwise [C, K], `name`.norm and `name`.output [C, C]
  /// in the current bucket.
  ConvolutionModule(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [B*T, C] -> the same. `source`, the same in both calls: the norm that x came from and that
  /// makes it again for backward; then what is kept are the results of products and convolution.
  Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const Tensor& d_y, ResidualNorm* source = nullptr);

  /// Of a causal one, for streams in chunks of at most `chunk` frames: the gated frames before.
  RecentRows make_past(Pass& pass, std::int64_t chunk) const;
  /// A stream begins: nothing is before it.
  void begin(Pass& pass, RecentRows& past) const { past.begin(pass.stream(), options_.kernel - 1); }
  /// Of the next frames of one stream [T, C], in evaluation.
  Tensor forward_chunk(Pass& pass, const Tensor& x, RecentRows& past);

 private:
  Tensor gate(Pass& pass, const Tensor& wide) const;
  Tensor convolve(Pass& pass, const TensorView& gated, const TensorView& history = {}) const;
  Tensor activate(Pass& pass, const Tensor& normed) const;
  Tensor convolve_backward(Pass& pass, const Tensor& gated, const Tensor& d_convolved);

  Options options_;
  Linear input_;
  Parameter *weight_, *bias_;
  std::unique_ptr<ChannelNorm> norm_;
  Linear output_;
  Dropout dropout_;
};

}  // namespace choir
