#pragma once
// The convolutions of speech models: the module inside a conformer block, and the subsampling
// before the blocks.
#include <memory>
#include <string>
#include <vector>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/norms.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// The convolution module of a conformer block (Gulati et al. 2020): C -> 2C, GLU (frames beyond
/// the length are zero), depthwise convolution over time, norm (of every frame over its channels,
/// or of every channel over the frames of the micro-batch), Swish, C -> C. Over the tensor axis
/// channels are divided, both halves of the GLU alike, so that everything between the products is
/// local except a norm over channels.
class ConvolutionModule {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t kernel = 9;
    bool causal = false;  ///< sees no future frames; otherwise equally many past and future frames
    double norm_eps = 1e-5;
    bool batch_norm = false;       ///< the norm is over frames, not over channels
    double dropout = 0;            ///< on the output
    bool dropout_in_norm = false;  ///< as in FeedForward::Options
    double init_std = 0.02;
  };
  /// Registers `name`.input [2C, C], `name`.depthwise [C, K], `name`.norm and `name`.output [C, C]
  /// in the current bucket.
  ConvolutionModule(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [B*T, C] -> the same shape; with streams, x holds the next frames. `source`, the same in
  /// both calls, is the norm that produced x and recomputes it for backward; then only the results
  /// of products and of the convolution are kept.
  Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source = nullptr);
  /// The last steps, for the norm behind the branch.
  BranchEnd end() { return {&dropout_, &output_}; }

  /// Creates the history of gated frames for streams in chunks of at most `chunk` frames; only for
  /// causal modules.
  void remember(Pass& pass, StreamState& state, std::int64_t chunk) const;

 private:
  Tensor gate(Pass& pass, const Tensor& wide) const;
  Tensor convolve(Pass& pass, const Tensor& gated) const;
  /// The frames of the streams before these, [B, K - 1, C]; empty without streams.
  Tensor history(Pass& pass, const Tensor& gated) const;
  Tensor activate(Pass& pass, const Tensor& normed) const;
  Tensor convolve_backward(Pass& pass, const Tensor& gated, const Tensor& d_convolved);

  Options options_;
  Linear input_;
  Parameter *weight_, *bias_;
  std::unique_ptr<ChannelNorm> norm_;
  Linear output_;
  Dropout dropout_;
};

/// Depthwise-striding subsampling (Rekesh et al. 2023): features [B, T, F] become rows [B*T', C],
/// T' and F' halved `stages` times. conv 3x3 stride 2 (1 -> Cs), ReLU; then per stage a depthwise
/// conv 3x3 stride 2, a product Cs -> Cs, ReLU; last a product (F' Cs) -> C. Activations are
/// channels last, so that the inputs of the last are (f, c). Frames that do not count are zeros
/// before every convolution.
///
/// Ranks of the tensor axis all do the whole: its weights are few, and all ranks hold the audio.
/// Under sequence parallelism each goes on with its share of the rows, and gradients are gathered
/// before they come back, so that every rank has them whole.
class ConvSubsampling {
 public:
  struct Options {
    std::int64_t features = 80;   ///< F
    std::int64_t channels = 256;  ///< Cs
    std::int64_t width = 0;       ///< C
    int stages = 3;
    bool causal = false;
    double factor = 1;   ///< of the result
    double dropout = 0;  ///< on the result
  };
  /// Registers `name`.conv, `name`.depthwise.K and `name`.pointwise.K, and `name`.output in the
  /// current bucket.
  ConvSubsampling(ParameterSet& parameters, const std::string& name, const Options& options);

  /// features [B, T, F] in the compute type; frame_lengths [stages + 1, B] i32 on the device. The
  /// share of rows of this rank.
  Tensor forward(Pass& pass, const Tensor& features, const TensorView& frame_lengths);
  void backward(Pass& pass, const Tensor& d_rows, const TensorView& frame_lengths);

 private:
  struct Conv {
    Parameter *weight, *bias;
  };
  struct Stage {
    Conv depthwise;
    Linear pointwise;
  };
  Conv add_conv(ParameterSet& parameters, const std::string& name) const;
  /// Halves time and frequency; `stage` from 0 on.
  Tensor convolve(Pass& pass, const Conv& conv, const Tensor& x, const TensorView& frame_lengths,
                  int stage) const;
  /// d_x, empty for stage 0, whose input is no result.
  Tensor convolve_backward(Pass& pass, const Conv& conv, const Tensor& x, const Tensor& y,
                           const Tensor& d_y, const TensorView& frame_lengths, int stage) const;

  Options options_;
  Conv first_;
  std::vector<Stage> stages_;  ///< behind the first
  Linear output_;
  Dropout dropout_;
};

}  // namespace choir
