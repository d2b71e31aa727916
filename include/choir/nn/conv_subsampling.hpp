#pragma once
// Depthwise-striding subsampling (Rekesh et al. 2023): features [B, T, F] become rows [B*T', C], T'
// and F' halved `stages` times. conv 3x3 stride 2 (1 -> Cs), ReLU; then per stage a depthwise conv
// 3x3 stride 2, a product Cs -> Cs, ReLU; last a product (F' Cs) -> C. Activations are channels
// last, so that the inputs of the last are (f, c). Frames that do not count are zeros before every
// convolution.
//
// Ranks of the tensor axis all do the whole: its weights are few, and all ranks hold the audio.
// Under sequence parallelism each goes on with its share of the rows, and gradients are gathered
// before they come back, so that every rank has them whole.
#include <string>
#include <vector>

#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

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
